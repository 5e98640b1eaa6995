// The softmax weights of single rows, computed straight from the caller's memory.
#pragma once

#include "forward.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// The sum of the lanes is query.key. query is padded with 0 to whole vectors.
template <class E, class T>
GMA_INLINE Vector<T> lanes_of_product(const T* query, const E* key, int64_t columns) {
  constexpr int n = lanes<T>;
  Vector<T> sum{};
  int64_t c = 0;
  for (; c + 4 * n <= columns; c += 4 * n)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sum += load(query + c + v * n) * load(key + c + v * n);
  for (; c + n <= columns; c += n) sum += load(query + c) * load(key + c);
  if (c < columns) sum += load(query + c) * load_first(key + c, columns - c);
  return sum;
}

// logits[count] = scale * q.k_j for the first keys, written in whole vectors
template <class E, class T>
void dot_products(const T* query, MatrixRows<E> keys, int64_t count, int64_t columns, MatrixRows<E> next, T* logits) {
  constexpr int n = lanes<T>;
  for (int64_t j = 0; j < count; j += n) {
    const int height = count - j < n ? int(count - j) : n;
    Vector<T> sums[n] = {};
    for (int i = 0; i < height; ++i) {
      prefetch_ahead(keys, j + i, count, next, columns);
      sums[i] = lanes_of_product(query, keys[j + i], columns);
    }
    store(logits + j, reduce_rows<T>(sums, [](Vector<T> x, Vector<T> y) { return x + y; }));
  }
}

// Of one row.
template <class T>
struct WeightsScratch {
  T *query, *weights;

  WeightsScratch(const ForwardParams& p, Arena& arena) {
    query = arena.take<T>(whole_vectors<T>(p.head_size));
    weights = arena.take<T>(whole_vectors<T>(p.keys));
  }
};

template <class T>
struct SoftmaxTotals {
  T maximum, sum;
};

// s.weights[visible] = exp(logit - maximum) of one row, 0 to the end of the last vector; visible > 0.
// `next`: the rows that will be read after the keys.
template <class E, class T>
SoftmaxTotals<T> row_weights(const ForwardParams& p, int64_t b, int64_t h, int64_t i, const Row<T>& row,
                             MatrixRows<E> next, const WeightsScratch<T>& s) {
  pack_rows(row_of<E>(p.query, b, h, i), 0, 1, p.head_size, T(p.scale), s.query, 0);
  dot_products(s.query, rows_of<E>(p.key, b, h), row.visible, p.head_size, next, s.weights);
  Vector<T> largest{};
  with_prior(p.prior, [&](auto kind) {
    largest = add_prior<kind.value, true>(s.weights, row.visible, row.visible, T(1 - row.prior.peak), row.prior,
                                          broadcast<T>(-T(__builtin_inf())));
  });
  const T maximum = max_of_lanes<T>(largest);
  return {maximum, sum_of_lanes<T>(exponentiate(s.weights, row.visible, maximum))};
}

// weights: [B, H, T, S] contiguous
template <class E>
void weights_all(const ForwardParams& p, void* weights, const Parallel& parallel) {
  if (p.keys == 0) return;
  using T = Arithmetic<E>;
  Arena measure{0};
  WeightsScratch<T>(p, measure);
  const int64_t heads = p.batches * p.heads;
  const double operations = 2.0 * double(p.head_size) * double(p.keys) * double(p.rows) * double(heads);
  for_each_task(parallel, heads * p.rows, operations, measure.used, [&](int64_t task, Arena arena) {
    const int64_t b = task / p.rows / p.heads, h = task / p.rows % p.heads, i = task % p.rows;
    const WeightsScratch<T> s(p, arena);
    const Row<T> row = make_row<T>(p, b, h, i);
    E* to = static_cast<E*>(weights) + task * p.keys;
    if (row.visible > 0) {
      const SoftmaxTotals<T> totals = row_weights<E>(p, b, h, i, row, rows_of<E>(p.key, b, h), s);
      unpack_row(s.weights, row.visible, 1 / totals.sum, to);
    }
    fill_zero(to + row.visible, p.keys - row.visible);
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

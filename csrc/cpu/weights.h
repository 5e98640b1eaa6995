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

// logits[count] = scale * q.k_j for the first keys, written in whole vectors. `next`: the rows that will be read after
// the keys.
template <bool prefetches, class E, class T>
void dot_products(const T* query, MatrixRows<E> keys, int64_t count, int64_t columns, MatrixRows<E> next, T* logits) {
  constexpr int n = lanes<T>;
  for (int64_t j = 0; j < count; j += n) {
    const int height = count - j < n ? int(count - j) : n;
    Vector<T> sums[n] = {};
    for (int i = 0; i < height; ++i) {
      if constexpr (prefetches) prefetch_ahead(keys, j + i, count, next, columns);
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
    // and whole vectors from any of the first keys on
    weights = arena.take<T>(whole_vectors<T>(p.keys) + lanes<T>);
  }
};

template <class T>
struct SoftmaxTotals {
  T maximum, sum;
};

// The key with which the weights of a row begin: a whole counter of dropout.
template <class T>
GMA_INLINE int64_t first_weight(const Row<T>& row) {
  return row.first & ~3;
}

// weights[...] = exp(logit - maximum), from scores of the keys begin .. visible - 1 of one row; 0 before the first that
// it sees, and to the end of the last vector. visible > 0
template <class T>
SoftmaxTotals<T> exponentiate_scores(PriorKind prior, const Row<T>& row, int64_t begin, T* weights) {
  const int64_t count = row.visible - begin;
  Vector<T> largest{};
  with_prior(prior, [&](auto kind) {
    with_flag(row.first > begin, [&](auto hidden_left) {
      constexpr Mask mask = hidden_left.value ? Mask::both : Mask::right;
      largest = add_prior<kind.value, mask>(weights, count, count, T(begin + 1 - row.prior.peak), row.prior,
                                            broadcast<T>(-T(__builtin_inf())), row.first - begin);
    });
  });
  const T maximum = max_of_lanes<T>(largest);
  return {maximum, sum_of_lanes<T>(exponentiate(weights, count, maximum))};
}

// s.weights = exp(logit - maximum) of one row, from `first_weight` on; visible > 0.
// `next`: the rows that will be read after the keys.
template <class E, class T>
SoftmaxTotals<T> row_weights(const ForwardParams& p, int64_t b, int64_t h, int64_t i, const Row<T>& row,
                             MatrixRows<E> next, const WeightsScratch<T>& s) {
  const int64_t begin = first_weight(row);
  pack_rows(row_of<E>(p.query, b, h, i), 0, 1, p.head_size, T(p.scale), s.query, 0);
  dot_products<true>(s.query, rows_of<E>(p.key, b, key_head(p, h)).from(begin), row.visible - begin, p.head_size, next,
                     s.weights);
  return exponentiate_scores(p.prior, row, begin, s.weights);
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
    const Row<T> row = make_row<E>(p, b, h, i);
    E* to = static_cast<E*>(weights) + task * p.keys;
    if (row.visible > 0) {
      const SoftmaxTotals<T> totals = row_weights<E>(p, b, h, i, row, rows_of<E>(p.key, b, key_head(p, h)), s);
      unpack_row(s.weights + row.first - first_weight(row), row.visible - row.first, 1 / totals.sum, to + row.first);
    }
    fill_zero(to, row.first);
    fill_zero(to + row.visible, p.keys - row.visible);
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

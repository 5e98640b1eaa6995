// Rows one at a time, straight from the caller's memory: decoding, and the weights themselves.
#pragma once

#include "forward.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// With fewer rows than this, packing keys and values costs more than it saves.
constexpr int64_t rows_worth_packing = 4;

// Decoding is as fast as memory is read, so rows are asked for this many before their turn.
constexpr int64_t rows_ahead = 32;

template <class E>
struct MatrixRows {
  const E* first;
  int64_t stride;

  GMA_INLINE const E* operator[](int64_t j) const { return first + j * stride; }
};

template <class E>
GMA_INLINE MatrixRows<E> rows_of(const View<const void>& view, int64_t b, int64_t h) {
  return {row_of<E>(view, b, h, 0), view.row_stride};
}

// At row j of `count`: asks for the row needed soon, past the last for one of those that are read `next`.
template <class E>
GMA_INLINE void expect_ahead(MatrixRows<E> rows, int64_t j, int64_t count, MatrixRows<E> next, int64_t columns) {
  const int64_t ahead = j + rows_ahead;
  ask_for<Access::read>(ahead < count ? rows[ahead] : next[ahead - count], columns * int64_t(sizeof(E)));
}

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
      expect_ahead(keys, j + i, count, next, columns);
      sums[i] = lanes_of_product(query, keys[j + i], columns);
    }
    store(logits + j, reduce_rows<T>(sums, [](Vector<T> x, Vector<T> y) { return x + y; }));
  }
}

template <class T>
struct DecodeScratch {
  T *query, *weights, *keep, *context;

  DecodeScratch(const ForwardParams& p, Arena& arena) {
    query = arena.take<T>(whole_vectors<T>(p.head_size));
    weights = arena.take<T>(whole_vectors<T>(p.keys));
    keep = arena.take<T>(p.drop_below > 0 ? p.keys + 4 * lanes<T> : 0);
    context = arena.take<T>(whole_vectors<T>(p.value_size));
  }
};

template <class T>
struct SoftmaxTotals {
  T maximum, sum;
};

// s.weights[visible] = exp(logit - maximum) of one row, 0 to the end of the last vector; visible > 0.
// `next` is what will be read after the keys.
template <class E, class T>
SoftmaxTotals<T> row_weights(const ForwardParams& p, int64_t b, int64_t h, int64_t i, const Row<T>& row,
                             MatrixRows<E> next, const DecodeScratch<T>& s) {
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

// context[columns padded] = sum_j weights[j] value[j], four vectors of columns at a time
template <class E, class T>
void weighted_sum(const T* weights, MatrixRows<E> values, int64_t count, int64_t columns, MatrixRows<E> next,
                  T* context) {
  constexpr int n = lanes<T>;
  int64_t c = 0;
  for (; c + 4 * n <= columns; c += 4 * n) {
    Vector<T> sum[4] = {};
    for (int64_t j = 0; j < count; ++j) {
      // the first pass over the rows fetches them for all
      if (c == 0) expect_ahead(values, j, count, next, columns);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sum[v] += weights[j] * load(values[j] + c + v * n);
    }
    for (int v = 0; v < 4; ++v) store(context + c + v * n, sum[v]);
  }
  for (; c < columns; c += n) {
    Vector<T> sum{};
    for (int64_t j = 0; j < count; ++j)
      sum += weights[j] * (columns - c < n ? load_first(values[j] + c, columns - c) : load(values[j] + c));
    store(context + c, sum);
  }
}

template <class E>
void decode_row(const ForwardParams& p, int64_t b, int64_t h, int64_t i, Arena arena) {
  using T = Arithmetic<E>;
  const DecodeScratch<T> s(p, arena);
  const Row<T> row = make_row<T>(p, b, h, i);
  E* context = row_of<E>(p.context, b, h, i);
  T* logsumexp = row_of<T>(p.logsumexp, b, h, i);
  if (row.visible == 0) {
    fill_zero(context, p.value_size);
    *logsumexp = -T(__builtin_inf());
    return;
  }
  int64_t next_b = b, next_h = h;
  if (!next_head(p, next_b, next_h)) next_b = b, next_h = h;
  ask_for<Access::read>(row_of<E>(p.query, next_b, next_h, i), p.head_size * int64_t(sizeof(E)));
  const MatrixRows<E> values = rows_of<E>(p.value, b, h);
  const SoftmaxTotals<T> totals = row_weights<E>(p, b, h, i, row, values, s);
  if (p.drop_below > 0) {
    keep_factors(p, b, h, i, 0, row.visible, s.keep);
    for (int64_t c = 0; c < row.visible; c += lanes<T>) store(s.weights + c, load(s.weights + c) * load(s.keep + c));
  }
  weighted_sum(s.weights, values, row.visible, p.value_size, rows_of<E>(p.key, next_b, next_h), s.context);
  unpack_row(s.context, p.value_size, 1 / totals.sum, context);
  *logsumexp = totals.maximum + Math<T>::log(broadcast(totals.sum))[0];
}

template <class E>
void decode_all(const ForwardParams& p, const Parallel& parallel) {
  Arena measure{0};
  DecodeScratch<Arithmetic<E>>(p, measure);
  const int64_t heads = p.batches * p.heads;
  const double operations = 2.0 * double(p.head_size + p.value_size) * double(p.keys) * double(p.rows) * double(heads);
  for_each_task(parallel, heads, operations, measure.used, [&](int64_t head, Arena arena) {
    for (int64_t i = 0; i < p.rows; ++i) decode_row<E>(p, head / p.heads, head % p.heads, i, arena);
  });
}

// weights: [B, H, T, S] contiguous
template <class E>
void weights_all(const ForwardParams& p, void* weights, const Parallel& parallel) {
  if (p.keys == 0) return;
  using T = Arithmetic<E>;
  Arena measure{0};
  DecodeScratch<T>(p, measure);
  const int64_t heads = p.batches * p.heads;
  const double operations = 2.0 * double(p.head_size) * double(p.keys) * double(p.rows) * double(heads);
  for_each_task(parallel, heads * p.rows, operations, measure.used, [&](int64_t task, Arena arena) {
    const int64_t b = task / p.rows / p.heads, h = task / p.rows % p.heads, i = task % p.rows;
    const DecodeScratch<T> s(p, arena);
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

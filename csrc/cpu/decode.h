// Rows one at a time, straight from the caller's memory: decoding, and the weights themselves.
#pragma once

#include "forward.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// With fewer rows than this, packing keys and values costs more than it saves.
constexpr int64_t rows_worth_packing = 4;

// logits[count] = scale * q.k_j for the first keys, written in whole vectors
template <class E, class T>
void dot_products(const T* query, const E* key, int64_t key_stride, int64_t count, int64_t columns, T* logits) {
  constexpr int n = lanes<T>;
  for (int64_t j = 0; j < count; j += n) {
    const int height = count - j < n ? int(count - j) : n;
    Vector<T> sums[n] = {};
    int64_t c = 0;
    if (height == n) {
      for (; c + n <= columns; c += n) {
        const Vector<T> q = load(query + c);
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) sums[i] += q * load(key + (j + i) * key_stride + c);
      }
    }
    for (; c < columns; c += n)
      for (int i = 0; i < height; ++i) {
        const E* from = key + (j + i) * key_stride + c;
        sums[i] += load(query + c) * (columns - c < n ? load_first(from, columns - c) : load(from));
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

// s.weights[visible] = exp(logit - maximum) of one row, 0 to the end of the last vector; visible > 0
template <class E, class T>
SoftmaxTotals<T> row_weights(const ForwardParams& p, int64_t b, int64_t h, int64_t i, const Row<T>& row,
                             const DecodeScratch<T>& s) {
  pack_rows(row_of<E>(p.query, b, h, i), 0, 1, p.head_size, T(p.scale), s.query, 0);
  dot_products(s.query, row_of<E>(p.key, b, h, 0), p.key.row_stride, row.visible, p.head_size, s.weights);
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
void weighted_sum(const T* weights, const E* value, int64_t value_stride, int64_t count, int64_t columns, T* context) {
  constexpr int n = lanes<T>;
  int64_t c = 0;
  for (; c + 4 * n <= columns; c += 4 * n) {
    Vector<T> sum[4] = {};
    const E* from = value + c;
    for (int64_t j = 0; j < count; ++j, from += value_stride)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sum[v] += weights[j] * load(from + v * n);
    for (int v = 0; v < 4; ++v) store(context + c + v * n, sum[v]);
  }
  for (; c < columns; c += n) {
    Vector<T> sum{};
    const E* from = value + c;
    for (int64_t j = 0; j < count; ++j, from += value_stride)
      sum += weights[j] * (columns - c < n ? load_first(from, columns - c) : load(from));
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
  const SoftmaxTotals<T> totals = row_weights<E>(p, b, h, i, row, s);
  if (p.drop_below > 0) {
    keep_factors(p, b, h, i, 0, row.visible, s.keep);
    for (int64_t c = 0; c < row.visible; c += lanes<T>) store(s.weights + c, load(s.weights + c) * load(s.keep + c));
  }
  weighted_sum(s.weights, row_of<E>(p.value, b, h, 0), p.value.row_stride, row.visible, p.value_size, s.context);
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
      const SoftmaxTotals<T> totals = row_weights<E>(p, b, h, i, row, s);
      unpack_row(s.weights, row.visible, 1 / totals.sum, to);
    }
    fill_zero(to + row.visible, p.keys - row.visible);
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

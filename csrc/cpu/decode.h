// Decoding: rows one at a time, straight from the caller's memory.
#pragma once

#include "weights.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// With fewer rows than this, packing keys and values costs more than it saves.
constexpr int64_t rows_worth_packing = 4;

template <class T>
struct DecodeScratch : WeightsScratch<T> {
  T *keep, *context;

  DecodeScratch(const ForwardParams& p, Arena& arena) : WeightsScratch<T>(p, arena) {
    keep = arena.take<T>(p.drop_below > 0 ? p.keys + 4 * lanes<T> : 0);
    context = arena.take<T>(whole_vectors<T>(p.value_size));
  }
};

// context[columns padded] = sum_j weights[j] value[j], four vectors of columns at a time
template <class E, class T>
void weighted_sum(const T* weights, MatrixRows<E> values, int64_t count, int64_t columns, MatrixRows<E> next,
                  T* context) {
  constexpr int n = lanes<T>;
  int64_t c = 0;
  for (; c + 4 * n <= columns; c += 4 * n) {
    Vector<T> sum[4] = {};
    for (int64_t j = 0; j < count; ++j) {
      // the first pass over the rows prefetches them for all passes
      if (c == 0) prefetch_ahead(values, j, count, next, columns);
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
  prefetch<Access::read>(row_of<E>(p.query, next_b, next_h, i), p.head_size * int64_t(sizeof(E)));
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

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

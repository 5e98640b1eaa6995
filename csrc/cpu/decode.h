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
  const Row<T> row = make_row<E>(p, b, h, i);
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
  const int64_t begin = first_weight(row);
  const MatrixRows<E> values = rows_of<E>(p.value, b, h).from(row.first);
  const SoftmaxTotals<T> totals = row_weights<E>(p, b, h, i, row, values, s);
  if (p.drop_below > 0) {
    const int64_t count = row.visible - begin;
    keep_factors(p, b, h, i, begin, count, s.keep);
    for (int64_t c = 0; c < count; c += lanes<T>) store(s.weights + c, load(s.weights + c) * load(s.keep + c));
  }
  weighted_sum(s.weights + row.first - begin, values, row.visible - row.first, p.value_size,
               rows_of<E>(p.key, next_b, next_h), s.context);
  unpack_row(s.context, p.value_size, 1 / totals.sum, context);
  *logsumexp = totals.maximum + Math<T>::log(broadcast(totals.sum))[0];
}

// Grouped heads read their keys and values in blocks of so many, which stay in the L1 cache from the first to the last.
constexpr int64_t decode_block_keys = 64;

// One row of each head of a group.
template <class T>
struct DecodeGroupScratch {
  int64_t query_stride, weights_stride, context_stride;
  Row<T>* rows;
  SoftmaxTotals<T>* totals;
  T *queries, *weights, *contexts, *keep;

  DecodeGroupScratch(const ForwardParams& p, Arena& arena) {
    query_stride = whole_vectors<T>(p.head_size);
    weights_stride = whole_vectors<T>(p.keys) + decode_block_keys;
    context_stride = whole_vectors<T>(p.value_size);
    rows = arena.take<Row<T>>(p.group);
    totals = arena.take<SoftmaxTotals<T>>(p.group);
    queries = arena.take<T>(p.group * query_stride);
    weights = arena.take<T>(p.group * weights_stride);
    contexts = arena.take<T>(p.group * context_stride);
    keep = arena.take<T>(p.drop_below > 0 ? p.keys + 4 * lanes<T> : 0);
  }
};

// context[columns padded] += sum_j weights[j] value[j], four vectors of columns at a time
template <class E, class T>
void add_weighted(const T* weights, MatrixRows<E> values, int64_t count, int64_t columns, T* context) {
  constexpr int n = lanes<T>;
  int64_t c = 0;
  for (; c + 4 * n <= columns; c += 4 * n) {
    Vector<T> sum[4];
    for (int v = 0; v < 4; ++v) sum[v] = load(context + c + v * n);
    for (int64_t j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sum[v] += weights[j] * load(values[j] + c + v * n);
    for (int v = 0; v < 4; ++v) store(context + c + v * n, sum[v]);
  }
  for (; c < columns; c += n) {
    Vector<T> sum = load(context + c);
    for (int64_t j = 0; j < count; ++j)
      sum += weights[j] * (columns - c < n ? load_first(values[j] + c, columns - c) : load(values[j] + c));
    store(context + c, sum);
  }
}

// Row i of all heads of a group: every block of keys and values comes from memory once.
template <class E>
void decode_group(const ForwardParams& p, int64_t b, int64_t key_head, int64_t i, Arena arena) {
  using T = Arithmetic<E>;
  const DecodeGroupScratch<T> s(p, arena);
  const MatrixRows<E> keys = rows_of<E>(p.key, b, key_head), values = rows_of<E>(p.value, b, key_head);
  const int64_t first_head = key_head * p.group;
  for (int64_t r = 0; r < p.group; ++r) {
    s.rows[r] = make_row<E>(p, b, first_head + r, i);
    pack_rows(row_of<E>(p.query, b, first_head + r, i), 0, 1, p.head_size, T(p.scale), s.queries + r * s.query_stride,
              0);
  }
  fill_zero(s.contexts, p.group * s.context_stride);
  const KeyRange seen = keys_seen(p, s.rows, p.group);
  const int64_t begin = seen.begin & ~3;
  for (int64_t block = begin; block < seen.end; block += decode_block_keys) {
    const int64_t after = block + decode_block_keys;
    const MatrixRows<E> next = after < seen.end ? keys.from(after) : values.from(seen.begin);
    for (int64_t r = 0; r < p.group; ++r) {
      const int64_t left = s.rows[r].visible - block, count = left < decode_block_keys ? left : decode_block_keys;
      if (count <= 0) continue;
      const T* query = s.queries + r * s.query_stride;
      T* logits = s.weights + r * s.weights_stride + block - begin;
      // the first head brings the block, and what comes after it, from memory
      if (r == 0) dot_products<true>(query, keys.from(block), count, p.head_size, next, logits);
      else dot_products<false>(query, keys.from(block), count, p.head_size, next, logits);
    }
  }
  for (int64_t r = 0; r < p.group; ++r) {
    const Row<T>& row = s.rows[r];
    if (row.visible == 0) continue;
    T* weights = s.weights + r * s.weights_stride;
    s.totals[r] = exponentiate_scores(p.prior, row, begin, weights);
    if (p.drop_below == 0) continue;
    keep_factors(p, b, first_head + r, i, begin, row.visible - begin, s.keep);
    for (int64_t c = 0; c < row.visible - begin; c += lanes<T>)
      store(weights + c, load(weights + c) * load(s.keep + c));
  }
  for (int64_t block = seen.begin; block < seen.end; block += decode_block_keys)
    for (int64_t r = 0; r < p.group; ++r) {
      const int64_t left = s.rows[r].visible - block, count = left < decode_block_keys ? left : decode_block_keys;
      if (count > 0)
        add_weighted(s.weights + r * s.weights_stride + block - begin, values.from(block), count, p.value_size,
                     s.contexts + r * s.context_stride);
    }
  for (int64_t r = 0; r < p.group; ++r) {
    const bool sees = s.rows[r].visible > 0;
    unpack_row(s.contexts + r * s.context_stride, p.value_size, sees ? 1 / s.totals[r].sum : T(0),
               row_of<E>(p.context, b, first_head + r, i));
    *row_of<T>(p.logsumexp, b, first_head + r, i) =
        sees ? s.totals[r].maximum + Math<T>::log(broadcast(s.totals[r].sum))[0] : -T(__builtin_inf());
  }
}

template <class E>
void decode_all(const ForwardParams& p, const Parallel& parallel) {
  using T = Arithmetic<E>;
  Arena measure{0};
  if (p.group == 1) DecodeScratch<T>(p, measure);
  else DecodeGroupScratch<T>(p, measure);
  const int64_t key_heads = p.heads / p.group;
  const double cells = double(p.keys) * double(p.rows) * double(p.batches * p.heads);
  for_each_task(parallel, p.batches * key_heads, 2.0 * double(p.head_size + p.value_size) * cells, measure.used,
                [&](int64_t task, Arena arena) {
    with_sentence<E>(p, task / key_heads, [&](const ForwardParams& own, int64_t b) {
      for (int64_t i = 0; i < own.rows; ++i)
        own.group == 1 ? decode_row<E>(own, b, task % key_heads, i, arena)
                       : decode_group<E>(own, b, task % key_heads, i, arena);
    });
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

// Forward: online softmax over tiles of keys, for groups of rows that fit the registers.
#pragma once

#include "rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

constexpr int64_t forward_tile_keys = tile_columns;
constexpr int64_t forward_chunk_rows = 512;

// How many rows one task computes. Depends on the shape alone: more, smaller chunks when there are few heads.
inline int64_t forward_rows_per_task(const ForwardParams& p) {
  const int64_t heads = p.batches * p.heads;
  const int64_t chunks = heads > 0 && heads < 64 ? (64 + heads - 1) / heads : 1;
  const int64_t rows = (p.rows + chunks - 1) / chunks;
  const int64_t least = p.rows < 128 ? p.rows : 128;
  return rows < least ? least : rows < forward_chunk_rows ? rows : forward_chunk_rows;
}

template <class T>
struct ForwardScratch {
  int64_t value_stride, tile_keys;
  int64_t* made;  // identifies the rows, for make_rows
  Row<T>* rows;
  T *maximum, *sum;  // of the softmax so far, [groups, group_lanes]
  T* context;        // unnormalised, [rows, Dv]
  T* query;          // one group, [group_rows, D]
  T* scores;         // one group, [group_rows, tile]
  T* keys;           // scaled and transposed, [D, tile]
  T* values;         // [tile, Dv]
  T* keep;           // [tile]

  ForwardScratch(const ForwardParams& p, int64_t row_count, Arena& arena) {
    const int64_t padded_rows = split_into_groups(row_count).count * group_lanes<T>;
    tile_keys = p.keys < forward_tile_keys ? p.keys : forward_tile_keys;
    value_stride = spread_stride<T>(p.value_size);
    made = arena.take<int64_t>(1);
    rows = arena.take<Row<T>>(row_count);
    maximum = arena.take<T>(padded_rows);
    sum = arena.take<T>(padded_rows);
    context = arena.take<T>(row_count * value_stride);
    query = arena.take<T>(group_rows * tile_stride<T>);
    scores = arena.take<T>(group_rows * tile_stride<T>);
    keys = arena.take<T>(p.head_size * key_stride());
    values = arena.take<T>(tile_keys * value_stride);
    keep = arena.take<T>(tile_keys + 4 * lanes<T>);
  }

  int64_t key_stride() const { return spread_stride<T>(tile_keys); }
};

// scores[width] += log prior, in whole vectors; with `masked`, -inf from `seen` on. Returns the lanes'
// maxima. The rows of a group share one width: branch prediction learns the loop's length.
template <PriorKind kind, bool masked, class T>
GMA_INLINE Vector<T> add_prior(T* scores, int64_t width, int64_t seen, T first_t, const RowPrior<T>& prior,
                               Vector<T> largest) {
  Vector<T> t = count_up<T>() + first_t;
  for (int64_t c = 0; c < width; c += lanes<T>, t += T(lanes<T>)) {
    Vector<T> x = load(scores + c) + log_prior<kind, Math<T>>(prior, t);
    if constexpr (masked) x = first_lanes<T>(seen - c) ? x : broadcast<T>(-T(__builtin_inf()));
    store(scores + c, x);
    largest = maximum(x, largest);
  }
  return largest;
}

// scores[width] = exp(scores - shift), in whole vectors; returns the lanes' sums
template <class T>
GMA_INLINE Vector<T> exponentiate(T* scores, int64_t width, T shift) {
  Vector<T> total{};
  for (int64_t c = 0; c < width; c += lanes<T>) {
    const Vector<T> weight = Math<T>::exp(load(scores + c) - shift);
    store(scores + c, weight);
    total += weight;
  }
  return total;
}

// One group of rows against one tile of keys.
template <PriorKind kind, bool masked, class E, class T>
void forward_tile(const ForwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t row, int count,
                  int64_t first_key, int64_t width, T* maxima, T* sums, const ForwardScratch<T>& s) {
  constexpr int n = lanes<T>;
  const Row<T>* rows = s.rows + row;
  pack_rows(row_of<E>(p.query, b, h, first_row + row), p.query.row_stride, count, p.head_size, T(1), s.query,
            tile_stride<T>);
  multiply<Left::as_stored>(count, width, p.head_size, s.query, s.keys, s.key_stride(), s.scores, tile_stride<T>,
                            false);

  const PrefetchedRows<Access::write> context_rows(E(), p.context, b, h, p.rows, p.value_size);
  const PrefetchedHead<E> next(p, b, h);
  Vector<T> partial[group_lanes<T>] = {};
  for (int r = 0; r < count; ++r) {
    if (first_key == 0) {
      context_rows.prefetch(first_row + row + r);
      next.key.prefetch(first_row + row + r);
    }
    partial[r] = add_prior<kind, masked>(s.scores + r * tile_stride<T>, width, rows[r].visible - first_key,
                                         T(first_key + 1 - rows[r].prior.peak), rows[r].prior, broadcast(maxima[r]));
  }
  T correction[group_lanes<T>];
  for (int r = 0; r < count; r += n) {
    Vector<T>(&square)[n] = *reinterpret_cast<Vector<T>(*)[n]>(partial + r);
    const Vector<T> before = load(maxima + r);
    const Vector<T> after = reduce_rows<T>(square, [](Vector<T> x, Vector<T> y) { return maximum(x, y); });
    store(correction + r, Math<T>::exp(before - after));
    store(maxima + r, after);
  }
  for (int r = 0; r < count; ++r) {
    T* weights = s.scores + r * tile_stride<T>;
    if (first_key == 0) {
      next.value.prefetch(first_row + row + r);
      next.query.prefetch(first_row + row + r);
    }
    partial[r] = exponentiate(weights, width, maxima[r]);
    if (p.drop_below == 0) continue;
    keep_factors(p, b, h, first_row + row + r, first_key, width, s.keep);
    for (int64_t c = 0; c < width; c += n) store(weights + c, load(weights + c) * load(s.keep + c));
  }
  for (int r = 0; r < count; r += n) {
    Vector<T>(&square)[n] = *reinterpret_cast<Vector<T>(*)[n]>(partial + r);
    const Vector<T> total = reduce_rows<T>(square, [](Vector<T> x, Vector<T> y) { return x + y; });
    store(sums + r, load(sums + r) * load(correction + r) + total);
  }

  T* context = s.context + row * s.value_stride;
  if (first_key > 0)
    for (int r = 0; r < count; ++r)
      for (int64_t c = 0; c < p.value_size; c += n) {
        T* at = context + r * s.value_stride + c;
        store(at, load(at) * correction[r]);
      }
  multiply<Left::as_stored>(count, p.value_size, width, s.scores, s.values, s.value_stride, context, s.value_stride,
                            first_key > 0);
}

// Rows first_row .. first_row + row_count of one head.
template <class E>
void forward_rows(const ForwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t row_count, Arena arena) {
  using T = Arithmetic<E>;
  const ForwardScratch<T> s(p, row_count, arena);
  make_rows(p, b, h, first_row, row_count, *s.made, s.rows);
  const Groups groups = split_into_groups(row_count);
  for (int64_t r = 0; r < groups.count * group_lanes<T>; ++r) {
    // the lowest finite number, so that a tile of nothing but -inf makes no NaN
    s.maximum[r] = lowest_finite<T>;
    s.sum[r] = 0;
  }
  const int64_t last_key = largest_visible(s.rows, row_count);
  for (int64_t first_key = 0; first_key < last_key; first_key += s.tile_keys) {
    const int64_t keys = last_key - first_key < s.tile_keys ? last_key - first_key : s.tile_keys;
    pack_transposed(row_of<E>(p.key, b, h, first_key), p.key.row_stride, keys, p.head_size, T(p.scale), s.keys,
                    s.key_stride());
    pack_rows(row_of<E>(p.value, b, h, first_key), p.value.row_stride, keys, p.value_size, T(1), s.values,
              s.value_stride);
    for (int64_t group = 0; group < groups.count; ++group) {
      const int64_t row = group * groups.size;
      const int count = int(row_count - row < groups.size ? row_count - row : groups.size);
      const int64_t left = largest_visible(s.rows + row, count) - first_key;
      if (left <= 0) continue;
      const int64_t width = left < keys ? left : keys;
      const bool masked = smallest_visible(s.rows + row, count) - first_key < whole_vectors<T>(width);
      T *maxima = s.maximum + group * group_lanes<T>, *sums = s.sum + group * group_lanes<T>;
      with_prior(p.prior, [&](auto kind) {
        with_flag(masked, [&](auto masked) {
          forward_tile<kind.value, masked.value, E>(p, b, h, first_row, row, count, first_key, width, maxima, sums, s);
        });
      });
    }
  }
  for (int64_t lane = 0; lane < groups.count * group_lanes<T>; lane += lanes<T>) {
    const Vector<T> sum = load(s.sum + lane);
    store(s.maximum + lane, load(s.maximum + lane) + Math<T>::log(sum));
    store(s.sum + lane, 1 / sum);
  }
  for (int64_t r = 0; r < row_count; ++r) {
    const bool sees = s.rows[r].visible > 0;
    const int64_t lane = r / groups.size * group_lanes<T> + r % groups.size;
    T* context = s.context + r * s.value_stride;
    if (!sees) fill_zero(context, s.value_stride);
    unpack_row(context, p.value_size, sees ? s.sum[lane] : T(0), row_of<E>(p.context, b, h, first_row + r));
    *row_of<T>(p.logsumexp, b, h, first_row + r) = sees ? s.maximum[lane] : -T(__builtin_inf());
  }
}

template <class E>
void forward_all(const ForwardParams& p, const Parallel& parallel) {
  const int64_t rows_per_task = forward_rows_per_task(p);
  if (rows_per_task == 0) return;
  const int64_t chunks = (p.rows + rows_per_task - 1) / rows_per_task, heads = p.batches * p.heads;
  Arena measure{0};
  ForwardScratch<Arithmetic<E>>(p, rows_per_task, measure);
  const double operations = 2.0 * double(p.head_size + p.value_size) * double(p.keys) * double(p.rows) * double(heads);
  // the last rows of a sentence usually see most: they go first
  for_each_task(parallel, heads * chunks, operations, measure.used, [&](int64_t task, Arena arena) {
    const int64_t head = task % heads, first_row = (chunks - 1 - task / heads) * rows_per_task;
    const int64_t rows = p.rows - first_row < rows_per_task ? p.rows - first_row : rows_per_task;
    forward_rows<E>(p, head / p.heads, head % p.heads, first_row, rows, arena);
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

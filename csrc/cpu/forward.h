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
  const int64_t most = forward_chunk_rows / (p.group < 4 ? p.group : 4);
  const int64_t least = p.rows < 128 ? p.rows : 128;
  return rows < least ? least : rows < most ? rows : most;
}

// The state of all rows of a group of heads.
template <class E>
struct ForwardScratch {
  using T = Arithmetic<E>;
  using O = Operand<E>;
  int64_t value_stride, tile_keys;
  int64_t* made;     // identifies the rows, for make_rows
  Row<T>* rows;      // of each head, or once if the heads share them
  T *maximum, *sum;  // of the softmax so far, [groups, group_lanes]
  T* context;        // unnormalised, [rows, Dv]
  O* query;          // one group, [group_rows, D]
  T* scores;         // one group, [group_rows, tile]
  O* keys;           // scaled and transposed, [D, tile]
  O* values;         // [tile, Dv]
  T* keep;           // [tile]

  ForwardScratch(const ForwardParams& p, int64_t row_count, Arena& arena) {
    const int64_t padded_rows = split_into_groups<O>(row_count).count * group_lanes<T>;
    tile_keys = p.keys < forward_tile_keys ? p.keys : forward_tile_keys;
    value_stride = spread_stride<T>(p.value_size);
    made = arena.take<int64_t>(1);
    rows = arena.take<Row<T>>(p.group * row_count);
    maximum = arena.take<T>(p.group * padded_rows);
    sum = arena.take<T>(p.group * padded_rows);
    context = arena.take<T>(p.group * row_count * value_stride);
    query = arena.take<O>(group_rows * tile_stride<O>);
    scores = arena.take<T>(group_rows * tile_stride<T>);
    keys = arena.take<O>(operands<O>(p.head_size) * key_stride());
    values = arena.take<O>(operands<O>(tile_keys) * value_stride);
    keep = arena.take<T>(tile_keys + 4 * lanes<T>);
  }

  int64_t key_stride() const { return spread_stride<T>(tile_keys); }
};

// scores[width] += log prior, in whole vectors; where masked, -inf from `seen` on and before `first`. Returns the
// lanes' maxima. The rows of a group share one width: branch prediction learns the loop's length.
template <PriorKind kind, Mask mask, class T>
GMA_INLINE Vector<T> add_prior(T* scores, int64_t width, int64_t seen, T first_t, const RowPrior<T>& prior,
                               Vector<T> largest, int64_t first = 0) {
  Vector<T> t = count_up<T>() + first_t;
  for (int64_t c = 0; c < width; c += lanes<T>, t += T(lanes<T>)) {
    Vector<T> x = load(scores + c) + log_prior<kind, Math<T>>(prior, t);
    if constexpr (mask != Mask::none)
      x = lanes_seen<mask, T>(first - c, seen - c) ? x : broadcast<T>(-T(__builtin_inf()));
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

// Where one head's rows, and its state, are in the scratch.
template <class E>
struct HeadState {
  using T = Arithmetic<E>;
  using O = Operand<E>;
  Row<T>* rows;
  T *maximum, *sum, *context;

  HeadState(const ForwardParams& p, const ForwardScratch<E>& s, int64_t member, int64_t row_count) {
    const int64_t padded_rows = split_into_groups<O>(row_count).count * group_lanes<T>;
    rows = s.rows + (shares_rows(p) ? 0 : member * row_count);
    maximum = s.maximum + member * padded_rows;
    sum = s.sum + member * padded_rows;
    context = s.context + member * row_count * s.value_stride;
  }
};

// One group of rows, from `row` on, against the keys first_key .. first_key + width - 1, which begin at `column` of the
// packed tile; of values the first `skipped` are not used. is_first: whether nothing came before.
template <PriorKind kind, Mask mask, class E, class T = Arithmetic<E>>
void forward_tile(const ForwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t row, int count,
                  int64_t first_key, int64_t column, int64_t width, int64_t skipped, bool is_first, T* maxima, T* sums,
                  const HeadState<E>& head, const ForwardScratch<E>& s) {
  using O = Operand<E>;
  constexpr int n = lanes<T>;
  const Row<T>* rows = head.rows + row;
  pack_left(row_of<E>(p.query, b, h, first_row + row), p.query.row_stride, count, p.head_size, s.query, tile_stride<O>);
  multiply<Left::as_stored>(count, width, operands<O>(p.head_size), s.query, s.keys + column, s.key_stride(), s.scores,
                            tile_stride<T>, false, factor_of_product<O>(T(p.scale)));

  const PrefetchedRows<Access::write> context_rows(E(), p.context, b, h, p.rows, p.value_size);
  const PrefetchedHead<E> next(p, b, h);
  Vector<T> partial[group_lanes<T>] = {};
  for (int r = 0; r < count; ++r) {
    if (is_first) {
      context_rows.prefetch(first_row + row + r);
      next.key.prefetch(first_row + row + r);
    }
    partial[r] = add_prior<kind, mask>(s.scores + r * tile_stride<T>, width, rows[r].visible - first_key,
                                       T(first_key + 1 - rows[r].prior.peak), rows[r].prior, broadcast(maxima[r]),
                                       rows[r].first - first_key);
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
    if (is_first) {
      next.value.prefetch(first_row + row + r);
      next.query.prefetch(first_row + row + r);
    }
    partial[r] = exponentiate(weights, width, maxima[r]);
    if (p.drop_below > 0) {
      keep_factors(p, b, h, first_row + row + r, first_key, width, s.keep);
      for (int64_t c = 0; c < width; c += n) store(weights + c, load(weights + c) * load(s.keep + c));
    }
    make_operands<O>(weights, width);
  }
  for (int r = 0; r < count; r += n) {
    Vector<T>(&square)[n] = *reinterpret_cast<Vector<T>(*)[n]>(partial + r);
    const Vector<T> total = reduce_rows<T>(square, [](Vector<T> x, Vector<T> y) { return x + y; });
    store(sums + r, load(sums + r) * load(correction + r) + total);
  }

  T* context = head.context + row * s.value_stride;
  if (!is_first)
    for (int r = 0; r < count; ++r)
      for (int64_t c = 0; c < p.value_size; c += n) {
        T* at = context + r * s.value_stride + c;
        store(at, load(at) * correction[r]);
      }
  // what is left of all that the rows see may be NaN, and has no part in the sum
  const int64_t begin = skipped / elements_per<O>;
  multiply<Left::as_stored>(count, p.value_size, operands<O>(width) - begin,
                            reinterpret_cast<const O*>(s.scores) + begin,
                            s.values + (column / elements_per<O> + begin) * s.value_stride, s.value_stride, context,
                            s.value_stride, !is_first);
}

template <class E>
void write_results(const ForwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t row_count,
                   const HeadState<E>& head, const ForwardScratch<E>& s) {
  using T = Arithmetic<E>;
  const Groups groups = split_into_groups<Operand<E>>(row_count);
  for (int64_t lane = 0; lane < groups.count * group_lanes<T>; lane += lanes<T>) {
    const Vector<T> sum = load(head.sum + lane);
    store(head.maximum + lane, load(head.maximum + lane) + Math<T>::log(sum));
    store(head.sum + lane, 1 / sum);
  }
  for (int64_t r = 0; r < row_count; ++r) {
    const bool sees = head.rows[r].visible > 0;
    const int64_t lane = r / groups.size * group_lanes<T> + r % groups.size;
    T* context = head.context + r * s.value_stride;
    if (!sees) fill_zero(context, s.value_stride);
    unpack_row(context, p.value_size, sees ? head.sum[lane] : T(0), row_of<E>(p.context, b, h, first_row + r));
    *row_of<T>(p.logsumexp, b, h, first_row + r) = sees ? head.maximum[lane] : -T(__builtin_inf());
  }
}

// Rows first_row .. first_row + row_count of all heads that share a head of keys, whose tiles are packed once for them.
template <class E>
void forward_rows(const ForwardParams& p, int64_t b, int64_t key_head, int64_t first_row, int64_t row_count,
                  Arena arena) {
  using T = Arithmetic<E>;
  using O = Operand<E>;
  const ForwardScratch<E> s(p, row_count, arena);
  const Groups groups = split_into_groups<O>(row_count);
  const int64_t first_head = key_head * p.group;
  KeyRange seen{0, 0};
  for (int64_t member = 0; member < p.group; ++member) {
    const HeadState<E> head(p, s, member, row_count);
    // the rows of several heads are not remembered from task to task
    if (p.group > 1 && !shares_rows(p)) *s.made = 0;
    make_rows<E>(p, b, first_head + member, first_row, row_count, *s.made, head.rows);
    seen.join(keys_seen(p, head.rows, row_count));
    for (int64_t r = 0; r < groups.count * group_lanes<T>; ++r) {
      // the lowest finite number, so that a tile of nothing but -inf makes no NaN
      head.maximum[r] = lowest_finite<T>;
      head.sum[r] = 0;
    }
  }
  for (int64_t first_key = seen.begin / column_step<T> * column_step<T>; first_key < seen.end;
       first_key += s.tile_keys) {
    const int64_t keys = seen.end - first_key < s.tile_keys ? seen.end - first_key : s.tile_keys;
    pack_transposed(row_of<E>(p.key, b, key_head, first_key), p.key.row_stride, keys, p.head_size,
                    factor_of_operand<O>(T(p.scale)), s.keys, s.key_stride());
    pack_right(row_of<E>(p.value, b, key_head, first_key), p.value.row_stride, keys, p.value_size,
               seen.begin - first_key, s.values, s.value_stride);
    for (int64_t member = 0; member < p.group; ++member) {
      const HeadState<E> head(p, s, member, row_count);
      for (int64_t group = 0; group < groups.count; ++group) {
        const int64_t row = group * groups.size;
        const int count = int(row_count - row < groups.size ? row_count - row : groups.size);
        const KeyRange own = keys_seen(p, head.rows + row, count);
        const int64_t begin = own.begin > first_key ? own.begin : first_key;
        const int64_t end = own.end < first_key + keys ? own.end : first_key + keys;
        if (end <= begin) continue;
        const int64_t column = (begin - first_key) / column_step<T> * column_step<T>, from = first_key + column;
        const Mask mask = mask_of(p, head.rows + row, count, from, end - from);
        T *maxima = head.maximum + group * group_lanes<T>, *sums = head.sum + group * group_lanes<T>;
        with_prior(p.prior, [&](auto kind) {
          with_mask(mask, [&](auto mask) {
            forward_tile<kind.value, mask.value, E>(p, b, first_head + member, first_row, row, count, from, column,
                                                    end - from, begin - from, own.begin >= first_key, maxima, sums,
                                                    head, s);
          });
        });
      }
    }
  }
  for (int64_t member = 0; member < p.group; ++member)
    write_results<E>(p, b, first_head + member, first_row, row_count, HeadState<E>(p, s, member, row_count), s);
}

template <class E>
void forward_all(const ForwardParams& p, const Parallel& parallel) {
  const int64_t rows_per_task = forward_rows_per_task(p);
  if (rows_per_task == 0) return;
  const int64_t chunks = (p.rows + rows_per_task - 1) / rows_per_task;
  const int64_t key_heads = p.heads / p.group, heads = p.batches * key_heads;
  Arena measure{0};
  ForwardScratch<E>(p, rows_per_task, measure);
  const double cells = double(p.keys) * double(p.rows) * double(p.batches * p.heads);
  // the last rows of a sentence usually see most: they go first
  for_each_task(parallel, heads * chunks, 2.0 * double(p.head_size + p.value_size) * cells, measure.used,
                [&](int64_t task, Arena arena) {
    const int64_t head = task % heads, first_row = (chunks - 1 - task / heads) * rows_per_task;
    with_sentence<E>(p, head / key_heads, [&](const ForwardParams& own, int64_t b) {
      const int64_t rows = own.rows - first_row < rows_per_task ? own.rows - first_row : rows_per_task;
      if (rows > 0) forward_rows<E>(own, b, head % key_heads, first_row, rows, arena);
    });
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

// Backward: five products for every tile of rows by keys, and one exponential for every weight.
//
// A task owns a chunk of the rows of one head and takes them in blocks. For each block it first computes
// the weights and their gradients against every tile of keys, and keeps them: only when the row is
// complete is delta = sum(beta dbeta) known, and taking it from these very numbers instead of from
// grad_context.context makes ds exactly 0 where it should be. For the same reason exponentials are divided
// by their own sum; the forward's logsumexp brings them near 1, and the one of a one-hot row to 1 exactly,
// if it was taken of the same scores to the last bit. Then it walks the tiles again and adds up all
// gradients. Those of keys and values are sums over the chunks, added in order afterwards.
#pragma once

#include "rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

constexpr int64_t backward_tile_keys = tile_columns;
constexpr int64_t backward_block_rows = 48;

struct BackwardPlan {
  int64_t heads, chunks, chunk_rows, tiles;
};

// Depends on the shape alone. Few heads are split into chunks of rows, at the price of partial sums.
inline BackwardPlan plan_backward(const BackwardParams& p) {
  const int64_t heads = p.batches * p.heads, blocks = (p.rows + backward_block_rows - 1) / backward_block_rows;
  int64_t chunks = 1;
  while (chunks * heads < 16 && 2 * (chunks + 1) <= blocks) ++chunks;
  const int64_t chunk_rows = (blocks + chunks - 1) / chunks * backward_block_rows;
  return {heads, chunk_rows > 0 ? (p.rows + chunk_rows - 1) / chunk_rows : 1, chunk_rows,
          (p.keys + backward_tile_keys - 1) / backward_tile_keys};
}

// Gradients of the keys and values of one head, from one chunk of its rows.
template <class T>
struct KeyGradients {
  int64_t key_stride, value_stride;
  T *key, *value;  // [S, D], [S, Dv]

  // the caller's own memory
  KeyGradients(const BackwardParams& p, int64_t b, int64_t h)
      : key_stride(p.grad_key.row_stride), value_stride(p.grad_value.row_stride),
        key(row_of<T>(p.grad_key, b, h, 0)), value(row_of<T>(p.grad_value, b, h, 0)) {}

  KeyGradients(const BackwardParams& p, Arena& arena) {
    key_stride = spread_stride<T>(p.head_size);
    value_stride = spread_stride<T>(p.value_size);
    key = arena.take<T>(p.keys * key_stride);
    value = arena.take<T>(p.keys * value_stride);
  }

  static int64_t bytes(const BackwardParams& p) {
    Arena measure{0};
    KeyGradients(p, measure);
    return measure.used;
  }
};

// What tasks leave behind for the last step.
template <class T>
struct BackwardWorkspace {
  T *center, *width;      // [heads, T]
  uintptr_t partial_keys;  // KeyGradients of slot = chunk * heads + head, only with several chunks
  int64_t partial_bytes;

  BackwardWorkspace(const BackwardParams& p, const BackwardPlan& plan, Arena& arena) {
    center = arena.take<T>(plan.heads * p.rows);
    width = arena.take<T>(plan.heads * p.rows);
    partial_bytes = plan.chunks > 1 ? KeyGradients<T>::bytes(p) : 0;
    partial_keys = reinterpret_cast<uintptr_t>(arena.take<char>(partial_bytes * plan.heads * plan.chunks));
  }

  KeyGradients<T> partial(const BackwardParams& p, int64_t slot) const {
    Arena arena{partial_keys + uintptr_t(slot * partial_bytes)};
    return KeyGradients<T>(p, arena);
  }
};

// Grows with the keys: about 800 bytes for each in float32 with D = 64, half of it weights and their gradients.
template <class T>
struct BackwardScratch {
  int64_t key_stride, tile_row_stride, block_rows;
  int64_t* made;                   // which rows these are
  Row<T>* rows;                    // one block
  T *keys, *keys_transposed;       // tiles of [tile, D] and, scaled, of [D, tile]
  T* values_transposed;            // tiles of [Dv, tile]
  T *query, *grad_context;         // one block, [rows, D] and [rows, Dv]
  T* grad_query;                   // one block, [rows, D], unless that is written in place
  T *weights, *grads;              // one block, tiles of [rows, tile]
  // [rows], of exponentials, and of those times dbeta; in double, because where one weight is nearly all, delta is
  // nearly its dbeta, and what is wanted is their difference
  double *weight_sum, *grad_sum;
  T* factor;                       // [rows], makes exponentials weights
  T *delta, *delta_rest;           // [rows], and what rounding took from it
  T* keep;                         // [tile]
  uintptr_t key_gradients;         // only with a single chunk

  BackwardScratch(const BackwardParams& p, const BackwardPlan& plan, Arena& arena) {
    block_rows = p.rows < backward_block_rows ? p.rows : backward_block_rows;
    key_stride = spread_stride<T>(p.head_size);
    tile_row_stride = spread_stride<T>(p.keys < backward_tile_keys ? p.keys : backward_tile_keys);
    made = arena.take<int64_t>(1);
    rows = arena.take<Row<T>>(block_rows);
    keys = arena.take<T>(p.keys * key_stride);
    keys_transposed = arena.take<T>(plan.tiles * p.head_size * tile_row_stride);
    values_transposed = arena.take<T>(plan.tiles * p.value_size * tile_row_stride);
    query = arena.take<T>(block_rows * tile_stride<T>);
    grad_context = arena.take<T>(block_rows * tile_stride<T>);
    grad_query = arena.take<T>(block_rows * key_stride);
    weights = arena.take<T>(plan.tiles * block_rows * tile_stride<T>);
    grads = arena.take<T>(plan.tiles * block_rows * tile_stride<T>);
    weight_sum = arena.take<double>(sums_rows());
    grad_sum = arena.take<double>(sums_rows());
    factor = arena.take<T>(block_rows);
    delta = arena.take<T>(block_rows);
    delta_rest = arena.take<T>(block_rows);
    keep = arena.take<T>(backward_tile_keys + 4 * lanes<T>);
    key_gradients = reinterpret_cast<uintptr_t>(arena.take<char>(plan.chunks > 1 ? 0 : KeyGradients<T>::bytes(p)));
  }

  // they are added to in whole vectors, from any row on
  int64_t sums_rows() const { return block_rows + group_lanes<T>; }
  int64_t tile_offset(int64_t tile) const { return tile * block_rows * tile_stride<T>; }
};

GMA_INLINE int64_t clamp_to(int64_t x, int64_t largest) { return x < 0 ? 0 : x < largest ? x : largest; }

// sums[row] += the lanes of its vector, for `count` rows of a group; adds 0 to what follows, up to a whole vector.
template <class T>
GMA_INLINE void add_row_sums(Vector<T> (&rows)[group_lanes<T>], int count, double* sums) {
  constexpr int n = lanes<double>;
  for (int r = count; r < group_lanes<T>; ++r) rows[r] = Vector<T>{};
  for (int r = 0; r < count; r += n) {
    Vector<double> square[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      const T* row = reinterpret_cast<const T*>(rows + r + i);
      double part[n];
      for (int lane = 0; lane < n; ++lane) {
        part[lane] = double(row[lane]);
        if constexpr (lanes<T> == 2 * n) part[lane] += double(row[n + lane]);
      }
      square[i] = load(part);
    }
    store(sums + r,
          load(sums + r) + reduce_rows<double>(square, [](Vector<double> x, Vector<double> y) { return x + y; }));
  }
}

// The logsumexp of a caller who did not get it from the forward may be anything.
template <class T>
constexpr T largest_exponent = T(40);

// One row of a tile: scores become exponentials, and gradients of dropped weights those of weights. With `masked` both
// are 0 from `seen` on.
template <PriorKind kind, bool masked, bool dropout, class T>
GMA_INLINE void exponentiate_row(T* weights, T* grads, int64_t width, int64_t seen, T first_t,
                                 const RowPrior<T>& prior, T logsumexp, const T* keep, Vector<T>& weight_sum,
                                 Vector<T>& grad_sum) {
  constexpr int n = lanes<T>;
  Vector<T> t = count_up<T>() + first_t, sum{}, product{};
  for (int64_t c = 0; c < width; c += n, t += T(n)) {
    const Vector<T> x = load(weights + c) + log_prior<kind, Math<T>>(prior, t) - logsumexp;
    Vector<T> weight = Math<T>::exp(minimum(broadcast(largest_exponent<T>), x)), grad = load(grads + c);
    if constexpr (masked) {
      // what stands there may belong to a key no row sees, and be NaN
      const BitsVector<T> is_seen = first_lanes<T>(seen - c);
      weight = is_seen ? weight : Vector<T>{};
      grad = is_seen ? grad : Vector<T>{};
    }
    if constexpr (dropout) grad *= load(keep + c);
    store(weights + c, weight);
    if constexpr (masked || dropout) store(grads + c, grad);
    sum += weight;
    product += weight * grad;
  }
  weight_sum = sum;
  grad_sum = product;
}

template <class T>
struct PriorSums {
  T center, width;  // over j of ds times the prior's terms
};

// One row of a tile: exponentials become dropped weights, and gradients of weights those of logits, times the scale.
// Both are 0 from `seen` to `width`; seen is that of its group.
template <PriorKind kind, bool dropout, class T>
GMA_INLINE void differentiate_row(T* weights, T* grads, int64_t seen, int64_t width, T first_t,
                                  const RowPrior<T>& prior, T factor, T delta, T delta_rest, T scale, const T* keep,
                                  PriorSums<T>& sums) {
  constexpr int n = lanes<T>;
  Vector<T> t = count_up<T>() + first_t, center{}, width_sum{};
  int64_t c = 0;
  for (; c < seen; c += n, t += T(n)) {
    const Vector<T> weight = load(weights + c) * factor, grad = weight * (load(grads + c) - delta - delta_rest);
    if constexpr (dropout) store(weights + c, weight * load(keep + c));
    else store(weights + c, weight);
    store(grads + c, grad * scale);
    if constexpr (kind != PriorKind::none) {
      const PriorTerms<Vector<T>> terms = prior_terms<kind, Math<T>>(prior, t);
      center += grad * terms.center;
      width_sum += grad * terms.width;
    }
  }
  for (; c < width; c += n) {
    store(weights + c, Vector<T>{});
    store(grads + c, Vector<T>{});
  }
  if constexpr (kind != PriorKind::none) {
    sums.center += sum_of_lanes<T>(center);
    sums.width += sum_of_lanes<T>(width_sum);
  }
}

// One block of rows of one head. Calls are made in this order.
template <class E, class T>
struct BackwardBlock {
  const BackwardParams& p;
  const BackwardScratch<T>& s;
  int64_t b, h, first_row, row_count, largest;
  T* grad_query;
  int64_t grad_query_stride;

  BackwardBlock(const BackwardParams& p, const BackwardScratch<T>& s, int64_t b, int64_t h, int64_t first_row,
                int64_t row_count)
      : p(p), s(s), b(b), h(h), first_row(first_row), row_count(row_count) {
    make_rows(p, b, h, first_row, row_count, *s.made, s.rows);
    largest = largest_visible(s.rows, row_count);
    const bool in_place = writes_in_place<E>(p.head_size);
    grad_query = in_place ? row_of<T>(p.grad_query, b, h, first_row) : s.grad_query;
    grad_query_stride = in_place ? p.grad_query.row_stride : s.key_stride;
    pack_rows(row_of<E>(p.query, b, h, first_row), p.query.row_stride, row_count, p.head_size, T(1), s.query,
              tile_stride<T>);
    pack_rows(row_of<E>(p.grad_context, b, h, first_row), p.grad_context.row_stride, row_count, p.value_size, T(1),
              s.grad_context, tile_stride<T>);
    // a row that sees nothing may hold anything
    for (int64_t r = 0; r < row_count; ++r) {
      if (s.rows[r].visible > 0) continue;
      fill_zero(s.query + r * tile_stride<T>, tile_columns);
      fill_zero(s.grad_context + r * tile_stride<T>, tile_columns);
    }
  }

  int64_t tiles() const { return (largest + backward_tile_keys - 1) / backward_tile_keys; }
  // how many keys of a tile a row, or the row among `count` that sees most, may use
  int64_t seen(int64_t tile, int64_t row, int64_t count = 1) const {
    return clamp_to(largest_visible(s.rows + row, count) - tile * backward_tile_keys, backward_tile_keys);
  }

  template <class Body>
  GMA_INLINE void for_each_group(Body body) const {
    const Groups groups = split_into_groups(row_count);
    for (int64_t row = 0; row < row_count; row += groups.size)
      body(row, int(row_count - row < groups.size ? row_count - row : groups.size));
  }

  // Calls body(kind, masked, dropout), as types, for what is known only now of rows that see so much of a tile.
  template <class Body>
  GMA_INLINE void specialised(int64_t tile, int64_t row, int count, int64_t width, Body body) const {
    const bool masked = smallest_visible(s.rows + row, count) - tile * backward_tile_keys < whole_vectors<T>(width);
    with_prior(p.prior, [&](auto kind) {
      with_flag(masked, [&](auto masked) {
        with_flag(p.drop_below > 0, [&](auto dropout) { body(kind, masked, dropout); });
      });
    });
  }

  void exponentiate(int64_t tile) const {
    constexpr int64_t stride = tile_stride<T>;
    const int64_t first_key = tile * backward_tile_keys;
    for_each_group([&](int64_t row, int count) {
      const int64_t width = seen(tile, row, count);
      if (width == 0) return;
      T* weights = s.weights + s.tile_offset(tile) + row * stride;
      T* grads = s.grads + s.tile_offset(tile) + row * stride;
      multiply<Left::as_stored>(count, width, p.head_size, s.query + row * stride,
                                s.keys_transposed + tile * p.head_size * s.tile_row_stride, s.tile_row_stride, weights,
                                stride, false);
      multiply<Left::as_stored>(count, width, p.value_size, s.grad_context + row * stride,
                                s.values_transposed + tile * p.value_size * s.tile_row_stride, s.tile_row_stride,
                                grads, stride, false);
      const ExpectedRows<Access::write> grad_query_rows(E(), p.grad_query, b, h, p.rows, p.head_size);
      const ExpectedHead<E> next(p, b, h);
      Vector<T> weight_sums[group_lanes<T>], grad_sums[group_lanes<T>];
      specialised(tile, row, count, width, [&](auto kind, auto masked, auto dropout) {
        for (int64_t r = row; r < row + count; ++r, weights += stride, grads += stride) {
          const int64_t i = first_row + r;
          if (tile == 0) {
            grad_query_rows.ask_for(i);
            next.query.ask_for(i);
            next.key.ask_for(i);
            next.value.ask_for(i);
          }
          const Row<T>& own = s.rows[r];
          if (dropout.value) keep_factors(p, b, h, i, first_key, width, s.keep);
          exponentiate_row<kind.value, masked.value, dropout.value>(
              weights, grads, width, own.visible - first_key, T(first_key + 1 - own.prior.peak), own.prior,
              *row_of<T>(p.logsumexp, b, h, i), s.keep, weight_sums[r - row], grad_sums[r - row]);
        }
      });
      add_row_sums<T>(weight_sums, count, s.weight_sum + row);
      add_row_sums<T>(grad_sums, count, s.grad_sum + row);
    });
  }

  // Leaves delta of each row, and what its exponentials have to be multiplied with.
  void normalise() const {
    for (int64_t r = 0; r < row_count; ++r) {
      // a row that sees nothing has no weights
      const double sum = s.weight_sum[r], delta = sum > 0 ? s.grad_sum[r] / sum : 0;
      s.factor[r] = sum > 0 ? T(1 / sum) : T(0);
      s.delta[r] = T(delta);
      s.delta_rest[r] = T(delta - double(s.delta[r]));
    }
  }

  // accumulate: whether gradients of keys hold something already
  void differentiate(int64_t tile, PriorSums<T>* sums, const KeyGradients<T>& gradients, bool accumulate) const {
    constexpr int64_t stride = tile_stride<T>;
    T *weights = s.weights + s.tile_offset(tile), *grads = s.grads + s.tile_offset(tile);
    const int64_t first_key = tile * backward_tile_keys, width = clamp_to(largest - first_key, backward_tile_keys);
    const ExpectedRows<Access::write> grad_key_rows(E(), p.grad_key, b, h, p.keys, p.head_size);
    const ExpectedRows<Access::write> grad_value_rows(E(), p.grad_value, b, h, p.keys, p.value_size);
    ExpectedRows<Access::read> next_grad_context;
    int64_t next_b = b, next_h = h;
    if (next_head(p, next_b, next_h)) next_grad_context = {E(), p.grad_context, next_b, next_h, p.rows, p.value_size};
    for_each_group([&](int64_t row, int count) {
      const int64_t group_seen = seen(tile, row, count);
      with_prior(p.prior, [&](auto kind) {
        with_flag(p.drop_below > 0, [&](auto dropout) {
          for (int64_t r = row; r < row + count; ++r) {
            if (tile == 0) {
              next_grad_context.ask_for(first_row + r);
              grad_key_rows.ask_for(first_row + r);
              grad_value_rows.ask_for(first_row + r);
            }
            if (dropout.value) keep_factors(p, b, h, first_row + r, first_key, group_seen, s.keep);
            differentiate_row<kind.value, dropout.value>(weights + r * stride, grads + r * stride, group_seen, width,
                                                         T(first_key + 1 - s.rows[r].prior.peak), s.rows[r].prior,
                                                         s.factor[r], s.delta[r], s.delta_rest[r], T(p.scale), s.keep,
                                                         sums[r]);
          }
        });
      });
      multiply<Left::as_stored>(count, p.head_size, group_seen, grads + row * stride,
                                s.keys + first_key * s.key_stride, s.key_stride, grad_query + row * grad_query_stride,
                                grad_query_stride, tile > 0);
    });

    const Groups groups = split_into_groups(width);
    for (int64_t k = 0; k < width; k += groups.size) {
      const int count = int(width - k < groups.size ? width - k : groups.size);
      // only the rows from the first to the last that see the first of these keys
      int64_t first = 0, last = row_count;
      while (first < last && s.rows[first].visible <= first_key + k) ++first;
      while (last > first && s.rows[last - 1].visible <= first_key + k) --last;
      multiply<Left::transposed>(count, p.value_size, last - first, weights + first * stride + k,
                                 s.grad_context + first * stride, stride,
                                 gradients.value + (first_key + k) * gradients.value_stride, gradients.value_stride,
                                 accumulate);
      multiply<Left::transposed>(count, p.head_size, last - first, grads + first * stride + k,
                                 s.query + first * stride, stride,
                                 gradients.key + (first_key + k) * gradients.key_stride, gradients.key_stride,
                                 accumulate);
    }
  }
};

// The first `keys` keys and values of a tile of one head.
template <class E, class T>
void pack_keys(const BackwardParams& p, const BackwardScratch<T>& s, int64_t b, int64_t h, int64_t tile, int64_t keys) {
  const int64_t first_key = tile * backward_tile_keys;
  T* packed = s.keys + first_key * s.key_stride;
  pack_rows(row_of<E>(p.key, b, h, first_key), p.key.row_stride, keys, p.head_size, T(1), packed, s.key_stride);
  // from the copy, which is in the first cache: the caller's rows are often so far apart that they displace each other
  pack_transposed(packed, s.key_stride, keys, p.head_size, T(p.scale),
                  s.keys_transposed + tile * p.head_size * s.tile_row_stride, s.tile_row_stride);
  pack_transposed(row_of<E>(p.value, b, h, first_key), p.value.row_stride, keys, p.value_size, T(1),
                  s.values_transposed + tile * p.value_size * s.tile_row_stride, s.tile_row_stride);
}

template <class E, class T>
void write_key_gradients(const BackwardParams& p, int64_t b, int64_t h, const KeyGradients<T>& gradients) {
  for (int64_t k = 0; k < p.keys; ++k) {
    unpack_row(gradients.key + k * gradients.key_stride, p.head_size, T(1), row_of<E>(p.grad_key, b, h, k));
    unpack_row(gradients.value + k * gradients.value_stride, p.value_size, T(1), row_of<E>(p.grad_value, b, h, k));
  }
}

// Rows first_row .. end_row of one head. center, width: their gradients, [T].
template <class E, class T>
void backward_chunk(const BackwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t end_row,
                    const BackwardScratch<T>& s, const KeyGradients<T>& gradients, T* center, T* width) {
  int64_t largest = 0;
  for (int64_t i = first_row; i < end_row; ++i) {
    const int64_t visible = visible_of(p, b, h, i);
    largest = visible > largest ? visible : largest;
  }
  for (int64_t tile = 0; tile * backward_tile_keys < largest; ++tile)
    pack_keys<E>(p, s, b, h, tile, clamp_to(largest - tile * backward_tile_keys, backward_tile_keys));

  // the first block writes gradients of the keys it sees; those of later ones start from 0
  int64_t written = 0;
  const auto write_zeros_until = [&](int64_t key) {
    for (; written < key; ++written) {
      fill_zero(gradients.key + written * gradients.key_stride, whole_vectors<T>(p.head_size));
      fill_zero(gradients.value + written * gradients.value_stride, whole_vectors<T>(p.value_size));
    }
  };
  for (int64_t row = first_row; row < end_row; row += backward_block_rows) {
    const int64_t count = clamp_to(end_row - row, backward_block_rows);
    const BackwardBlock<E, T> block(p, s, b, h, row, count);
    const bool accumulate = written > 0;
    if (accumulate) write_zeros_until(block.largest);
    written = block.largest > written ? block.largest : written;
    PriorSums<T> sums[backward_block_rows] = {};
    fill_zero(s.weight_sum, s.sums_rows());
    fill_zero(s.grad_sum, s.sums_rows());
    for (int64_t tile = 0; tile < block.tiles(); ++tile) block.exponentiate(tile);
    block.normalise();
    for (int64_t tile = 0; tile < block.tiles(); ++tile) block.differentiate(tile, sums, gradients, accumulate);
    for (int64_t r = 0; r < count; ++r) {
      T* grad_query = block.grad_query + r * block.grad_query_stride;
      if (s.rows[r].visible == 0) fill_zero(grad_query, whole_vectors<T>(p.head_size));
      if (!writes_in_place<E>(p.head_size))
        unpack_row(grad_query, p.head_size, T(1), row_of<E>(p.grad_query, b, h, row + r));
      PriorFactors<T> factors{};
      if (s.rows[r].visible > 0)
        with_prior(p.prior, [&](auto kind) { factors = prior_factors<kind.value>(s.rows[r].prior); });
      center[row + r] = factors.center * sums[r].center;
      width[row + r] = factors.width * sums[r].width;
    }
  }
  write_zeros_until(p.keys);
}

// [B, H, T] to the caller's memory, summed over the heads in order if they share one value.
template <class T>
void write_row_gradients(const BackwardParams& p, const T* from, const View<void>& to) {
  const bool shared = to.head_stride == 0;
  for (int64_t head = 0; head < p.batches * p.heads; ++head, from += p.rows) {
    const int64_t h = head % p.heads, stride = to.row_stride;
    T* at = row_of<T>(to, head / p.heads, h, 0);
    if (shared && h > 0)
      for (int64_t i = 0; i < p.rows; ++i) at[i * stride] += from[i];
    else
      for (int64_t i = 0; i < p.rows; ++i) at[i * stride] = from[i];
  }
}

template <class T>
GMA_INLINE void add_to(T* sum, const T* term, int64_t count) {
  for (int64_t c = 0; c < count; c += lanes<T>) store(sum + c, load(sum + c) + load(term + c));
}

template <class E>
int64_t backward_workspace(const BackwardParams& p) {
  Arena measure{0};
  BackwardWorkspace<Arithmetic<E>>(p, plan_backward(p), measure);
  return measure.used;
}

// workspace: backward_workspace(p) bytes, 64-byte aligned
template <class E>
void backward_all(const BackwardParams& p, void* workspace, const Parallel& parallel) {
  using T = Arithmetic<E>;
  const BackwardPlan plan = plan_backward(p);
  Arena arena{reinterpret_cast<uintptr_t>(workspace)}, measure{0};
  const BackwardWorkspace<T> space(p, plan, arena);
  BackwardScratch<T>(p, plan, measure);
  const double cells = double(plan.heads) * double(p.rows) * double(p.keys);

  // the last rows of a sentence usually see most: they go first
  for_each_task(parallel, plan.heads * plan.chunks, cells * 5 * double(p.head_size + p.value_size), measure.used,
                [&](int64_t task, Arena scratch) {
    const BackwardScratch<T> s(p, plan, scratch);
    const int64_t chunk = plan.chunks - 1 - task / plan.heads, head = task % plan.heads;
    const int64_t slot = chunk * plan.heads + head, first_row = chunk * plan.chunk_rows;
    const int64_t b = head / p.heads, h = head % p.heads;
    const int64_t end_row = first_row + clamp_to(p.rows - first_row, plan.chunk_rows);
    Arena own{s.key_gradients};
    const bool in_place = plan.chunks == 1 && writes_in_place<E>(p.head_size) && writes_in_place<E>(p.value_size);
    const KeyGradients<T> gradients = in_place          ? KeyGradients<T>(p, b, h)
                                      : plan.chunks > 1 ? space.partial(p, slot)
                                                        : KeyGradients<T>(p, own);
    backward_chunk<E>(p, b, h, first_row, end_row, s, gradients, space.center + head * p.rows,
                      space.width + head * p.rows);
    if (plan.chunks == 1 && !in_place) write_key_gradients<E>(p, b, h, gradients);
  });

  if (plan.chunks > 1)
    for_each_task(parallel, plan.heads, double(plan.heads) * double(p.keys) * 200, 64, [&](int64_t head, Arena) {
      const KeyGradients<T> total = space.partial(p, head);
      for (int64_t chunk = 1; chunk < plan.chunks; ++chunk) {
        const KeyGradients<T> part = space.partial(p, chunk * plan.heads + head);
        add_to(total.key, part.key, p.keys * total.key_stride);
        add_to(total.value, part.value, p.keys * total.value_stride);
      }
      write_key_gradients<E>(p, head / p.heads, head % p.heads, total);
    });
  write_row_gradients(p, space.center, p.grad_center);
  write_row_gradients(p, space.width, p.grad_width);
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

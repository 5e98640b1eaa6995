// Backward: five products for every tile of rows by keys, and one exponential for every weight.
//
// A task owns a chunk of the rows of one head and takes them in blocks. For each block it first computes
// the weights and their gradients against every tile of keys, and keeps them: only when the row is
// complete is delta = sum(beta dbeta) known, and taking it from these very numbers instead of from
// grad_context.context makes ds exactly 0 where it should be. For the same reason the forward's
// logsumexp only keeps the exponentials in range; they are divided by their own sum. Then it walks the
// tiles again and adds up all gradients. Those of keys and values are sums over the chunks, added in
// order afterwards.
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

// Sums over the keys, one for each row of a block, added up tile by tile.
template <class T>
struct RowSums {
  T *weight, *product;  // of exp(logit - logsumexp), and of that times dbeta
  T *center, *width;    // of ds times the prior's terms
};

// Grows with the keys: about 800 bytes for each in float32 with D = 64, half of it weights and their gradients.
template <class T>
struct BackwardScratch {
  // sums are added in whole vectors, from any row on
  static constexpr int64_t sums_rows = backward_block_rows + group_lanes<T>;
  int64_t key_stride, tile_row_stride, block_rows;
  T *keys, *keys_transposed;       // scaled, tiles of [tile, D] and [D, tile]
  T* values_transposed;            // tiles of [Dv, tile]
  Row<T>* rows;                    // one block
  T *query, *grad_context;         // one block, [rows, D] and [rows, Dv]
  T* grad_query;                   // one block, [rows, D]
  T *weights, *grads;              // one block, tiles of [rows, tile]
  T* logsumexp;                    // one block
  RowSums<T> sums;                 // one block
  T* keep;                         // [tile]
  uintptr_t key_gradients;         // only with a single chunk

  BackwardScratch(const BackwardParams& p, const BackwardPlan& plan, Arena& arena) {
    block_rows = p.rows < backward_block_rows ? p.rows : backward_block_rows;
    key_stride = spread_stride<T>(p.head_size);
    tile_row_stride = spread_stride<T>(p.keys < backward_tile_keys ? p.keys : backward_tile_keys);
    keys = arena.take<T>(p.keys * key_stride);
    keys_transposed = arena.take<T>(plan.tiles * p.head_size * tile_row_stride);
    values_transposed = arena.take<T>(plan.tiles * p.value_size * tile_row_stride);
    rows = arena.take<Row<T>>(block_rows);
    query = arena.take<T>(block_rows * tile_stride<T>);
    grad_context = arena.take<T>(block_rows * tile_stride<T>);
    grad_query = arena.take<T>(block_rows * key_stride);
    weights = arena.take<T>(plan.tiles * block_rows * tile_stride<T>);
    grads = arena.take<T>(plan.tiles * block_rows * tile_stride<T>);
    logsumexp = arena.take<T>(block_rows);
    for (T** sum : {&sums.weight, &sums.product, &sums.center, &sums.width}) *sum = arena.take<T>(sums_rows);
    keep = arena.take<T>(backward_tile_keys + 4 * lanes<T>);
    key_gradients = reinterpret_cast<uintptr_t>(arena.take<char>(plan.chunks > 1 ? 0 : KeyGradients<T>::bytes(p)));
  }

  int64_t tile_offset(int64_t tile) const { return tile * block_rows * tile_stride<T>; }
};

GMA_INLINE int64_t clamp_to(int64_t x, int64_t largest) { return x < 0 ? 0 : x < largest ? x : largest; }

// sums[count] += the lanes of each row's vector. Adds 0 to what follows, up to a whole vector.
template <class T>
GMA_INLINE void add_row_sums(Vector<T> (&rows)[group_lanes<T>], int count, T* sums) {
  constexpr int n = lanes<T>;
  for (int r = 0; r < count; r += n) {
    Vector<T>(&square)[n] = *reinterpret_cast<Vector<T>(*)[n]>(rows + r);
    store(sums + r, load(sums + r) + reduce_rows<T>(square, [](Vector<T> x, Vector<T> y) { return x + y; }));
  }
}

// A row's part of a tile: scores become exponentials, and gradients of dropped weights those of weights.
// Rows of a group share their width; with `masked` both are 0 from `seen` on.
template <PriorKind kind, bool masked, bool dropout, class T>
GMA_INLINE void exponentiate_row(T* weights, T* grads, int64_t width, int64_t seen, T first_t,
                                 const RowPrior<T>& prior, T logsumexp, const T* keep, Vector<T>& sum,
                                 Vector<T>& product) {
  constexpr int n = lanes<T>;
  Vector<T> t = count_up<T>() + first_t;
  for (int64_t c = 0; c < width; c += n, t += T(n)) {
    Vector<T> x = load(weights + c) + log_prior<kind, Math<T>>(prior, t) - logsumexp, grad = load(grads + c);
    if constexpr (masked) {
      // what stands past `seen` may belong to a key this row does not see, and be NaN
      const BitsVector<T> is_seen = first_lanes<T>(seen - c);
      x = is_seen ? x : broadcast<T>(-T(__builtin_inf()));
      grad = is_seen ? grad : Vector<T>{};
    }
    if constexpr (dropout) grad *= load(keep + c);
    const Vector<T> weight = Math<T>::exp(x);
    store(weights + c, weight);
    if constexpr (masked || dropout) store(grads + c, grad);
    sum += weight;
    product += weight * grad;
  }
}

// A row's part of a tile: exponentials become dropped weights, and gradients of weights those of logits.
template <PriorKind kind, bool dropout, class T>
GMA_INLINE void differentiate_row(T* weights, T* grads, int64_t width, T first_t, const RowPrior<T>& prior, T factor,
                                  T delta, const T* keep, Vector<T>& center_sum, Vector<T>& width_sum) {
  constexpr int n = lanes<T>;
  Vector<T> t = count_up<T>() + first_t;
  for (int64_t c = 0; c < width; c += n, t += T(n)) {
    const Vector<T> weight = load(weights + c) * factor;
    const Vector<T> grad = weight * (load(grads + c) - delta);
    if constexpr (dropout) store(weights + c, weight * load(keep + c));
    else store(weights + c, weight);
    store(grads + c, grad);
    if constexpr (kind != PriorKind::none) {
      const PriorTerms<Vector<T>> terms = prior_terms<kind, Math<T>>(prior, t);
      center_sum += grad * terms.center;
      width_sum += grad * terms.width;
    }
  }
}

// One block of rows of one head. Calls are made in this order.
template <class E, class T>
struct BackwardBlock {
  const BackwardParams& p;
  const BackwardScratch<T>& s;
  int64_t b, h, first_row, row_count, largest;

  BackwardBlock(const BackwardParams& p, const BackwardScratch<T>& s, int64_t b, int64_t h, int64_t first_row,
                int64_t row_count)
      : p(p), s(s), b(b), h(h), first_row(first_row), row_count(row_count) {
    for (int64_t r = 0; r < row_count; ++r) {
      s.rows[r] = make_row<T>(p, b, h, first_row + r);
      s.logsumexp[r] = *row_of<T>(p.logsumexp, b, h, first_row + r);
    }
    for (T* sum : {s.sums.weight, s.sums.product, s.sums.center, s.sums.width}) fill_zero(sum, s.sums_rows);
    largest = largest_visible(s.rows, row_count);
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
      T *weights = s.weights + s.tile_offset(tile) + row * stride, *grads = s.grads + s.tile_offset(tile) + row * stride;
      multiply<Left::as_stored>(count, width, p.head_size, s.query + row * stride,
                                s.keys_transposed + tile * p.head_size * s.tile_row_stride, s.tile_row_stride, weights,
                                stride, false);
      multiply<Left::as_stored>(count, width, p.value_size, s.grad_context + row * stride,
                                s.values_transposed + tile * p.value_size * s.tile_row_stride, s.tile_row_stride,
                                grads, stride, false);
      Vector<T> sums[group_lanes<T>] = {}, products[group_lanes<T>] = {};
      specialised(tile, row, count, width, [&](auto kind, auto masked, auto dropout) {
        for (int r = 0; r < count; ++r, weights += stride, grads += stride) {
          const int64_t i = first_row + row + r;
          if (tile == 0) {
            expect_row<E, Access::write>(p.grad_query, b, h, i, p.head_size);
            expect_next_head<E>(p, b, h, i);
          }
          const Row<T>& own = s.rows[row + r];
          if (dropout.value) keep_factors(p, b, h, i, first_key, width, s.keep);
          exponentiate_row<kind.value, masked.value, dropout.value>(
              weights, grads, width, own.visible - first_key, T(first_key + 1 - own.prior.peak), own.prior,
              s.logsumexp[row + r], s.keep, sums[r], products[r]);
        }
      });
      add_row_sums<T>(sums, count, s.sums.weight + row);
      add_row_sums<T>(products, count, s.sums.product + row);
    });
  }

  // Turns the sums of weights into what exponentials have to be multiplied with, and those of products into delta.
  void normalise() const {
    for (int64_t r = 0; r < row_count; r += lanes<T>) {
      const Vector<T> sum = load(s.sums.weight + r);
      // a row that sees nothing has no weights
      const Vector<T> factor = sum == 0 ? Vector<T>{} : 1 / sum;
      store(s.sums.weight + r, factor);
      store(s.sums.product + r, load(s.sums.product + r) * factor);
    }
  }

  // accumulate: whether gradients of keys hold something already
  void differentiate(int64_t tile, const KeyGradients<T>& gradients, bool accumulate) const {
    constexpr int64_t stride = tile_stride<T>;
    T *weights = s.weights + s.tile_offset(tile), *grads = s.grads + s.tile_offset(tile);
    const int64_t first_key = tile * backward_tile_keys, width = clamp_to(largest - first_key, backward_tile_keys);
    for_each_group([&](int64_t row, int count) {
      const int64_t group_width = seen(tile, row, count);
      Vector<T> center_sums[group_lanes<T>] = {}, width_sums[group_lanes<T>] = {};
      specialised(tile, row, count, group_width, [&](auto kind, auto, auto dropout) {
        for (int r = 0; r < count; ++r) {
          const int64_t i = first_row + row + r;
          if (tile == 0) {
            int64_t next_b = b, next_h = h;
            if (next_head(p, next_b, next_h))
              expect_row<E, Access::read>(p.grad_context, next_b, next_h, i, p.value_size);
            if (i < p.keys) {
              expect_row<E, Access::write>(p.grad_key, b, h, i, p.head_size);
              expect_row<E, Access::write>(p.grad_value, b, h, i, p.value_size);
            }
          }
          const Row<T>& own = s.rows[row + r];
          T *row_weights = weights + (row + r) * stride, *row_grads = grads + (row + r) * stride;
          if (dropout.value) keep_factors(p, b, h, i, first_key, group_width, s.keep);
          differentiate_row<kind.value, dropout.value>(row_weights, row_grads, group_width,
                                                       T(first_key + 1 - own.prior.peak), own.prior,
                                                       s.sums.weight[row + r], s.sums.product[row + r], s.keep,
                                                       center_sums[r], width_sums[r]);
          for (int64_t c = whole_vectors<T>(group_width); c < width; c += lanes<T>) {
            store(row_weights + c, Vector<T>{});
            store(row_grads + c, Vector<T>{});
          }
        }
      });
      add_row_sums<T>(center_sums, count, s.sums.center + row);
      add_row_sums<T>(width_sums, count, s.sums.width + row);
      multiply<Left::as_stored>(count, p.head_size, group_width, grads + row * stride,
                                s.keys + first_key * s.key_stride, s.key_stride, s.grad_query + row * s.key_stride,
                                s.key_stride, tile > 0);
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
  const E *key = row_of<E>(p.key, b, h, first_key), *value = row_of<E>(p.value, b, h, first_key);
  pack_rows(key, p.key.row_stride, keys, p.head_size, T(p.scale), s.keys + first_key * s.key_stride, s.key_stride);
  pack_transposed(key, p.key.row_stride, keys, p.head_size, T(p.scale),
                  s.keys_transposed + tile * p.head_size * s.tile_row_stride, s.tile_row_stride);
  pack_transposed(value, p.value.row_stride, keys, p.value_size, T(1),
                  s.values_transposed + tile * p.value_size * s.tile_row_stride, s.tile_row_stride);
}

template <class E, class T>
void write_key_gradients(const BackwardParams& p, int64_t b, int64_t h, const KeyGradients<T>& gradients) {
  for (int64_t k = 0; k < p.keys; ++k) {
    unpack_row(gradients.key + k * gradients.key_stride, p.head_size, T(p.scale), row_of<E>(p.grad_key, b, h, k));
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
    if (key <= written) return;
    fill_zero(gradients.key + written * gradients.key_stride, (key - written) * gradients.key_stride);
    fill_zero(gradients.value + written * gradients.value_stride, (key - written) * gradients.value_stride);
    written = key;
  };
  for (int64_t row = first_row; row < end_row; row += backward_block_rows) {
    const int64_t count = clamp_to(end_row - row, backward_block_rows);
    const BackwardBlock<E, T> block(p, s, b, h, row, count);
    const bool accumulate = written > 0;
    if (accumulate) write_zeros_until(block.largest);
    written = block.largest > written ? block.largest : written;
    for (int64_t tile = 0; tile < block.tiles(); ++tile) block.exponentiate(tile);
    block.normalise();
    for (int64_t tile = 0; tile < block.tiles(); ++tile) block.differentiate(tile, gradients, accumulate);
    for (int64_t r = 0; r < count; ++r) {
      if (s.rows[r].visible == 0) fill_zero(s.grad_query + r * s.key_stride, s.key_stride);
      unpack_row(s.grad_query + r * s.key_stride, p.head_size, T(1), row_of<E>(p.grad_query, b, h, row + r));
      PriorFactors<T> factors{};
      if (s.rows[r].visible > 0)
        with_prior(p.prior, [&](auto kind) { factors = prior_factors<kind.value>(s.rows[r].prior); });
      center[row + r] = factors.center * s.sums.center[r];
      width[row + r] = factors.width * s.sums.width[r];
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
    const KeyGradients<T> gradients = plan.chunks > 1 ? space.partial(p, slot) : KeyGradients<T>(p, own);
    backward_chunk<E>(p, b, h, first_row, end_row, s, gradients, space.center + head * p.rows,
                      space.width + head * p.rows);
    if (plan.chunks == 1) write_key_gradients<E>(p, b, h, gradients);
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

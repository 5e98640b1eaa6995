// The memory of the backward: what tasks share, and what each needs for itself.
#pragma once

#include "rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

constexpr int64_t backward_tile_keys = tile_columns;
constexpr int64_t backward_block_rows = 48;

// heads: those of keys, of all sentences
struct BackwardPlan {
  int64_t heads, chunks, chunk_rows, tiles;
};

// Depends on the shape alone. Few heads are split into chunks of rows, at the price of partial sums.
inline BackwardPlan plan_backward(const BackwardParams& p) {
  const int64_t heads = p.batches * (p.heads / p.group);
  const int64_t blocks = (p.rows + backward_block_rows - 1) / backward_block_rows;
  int64_t chunks = 1;
  while (chunks * heads < 16 && 2 * (chunks + 1) <= blocks) ++chunks;
  const int64_t chunk_rows = (blocks + chunks - 1) / chunks * backward_block_rows;
  return {heads, chunk_rows > 0 ? (p.rows + chunk_rows - 1) / chunk_rows : 1, chunk_rows,
          (p.keys + backward_tile_keys - 1) / backward_tile_keys};
}

// Gradients of the keys and values of one head of them, from one chunk of its rows.
template <class T>
struct KeyGradients {
  int64_t key_stride, value_stride;
  T *key, *value;  // [S, D], [S, Dv]

  // the caller's own memory
  KeyGradients(const BackwardParams& p, int64_t b, int64_t h)
      : key_stride(p.grad_key.row_stride),
        value_stride(p.grad_value.row_stride),
        key(row_of<T>(p.grad_key, b, h, 0)),
        value(row_of<T>(p.grad_value, b, h, 0)) {}

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

// The results of tasks that the last step needs.
template <class T>
struct BackwardWorkspace {
  T *center, *width;       // [H, all rows]
  uintptr_t partial_keys;  // KeyGradients of slot = chunk * heads + head, only with several chunks
  int64_t partial_bytes;
  KeyRange* partial_ranges;  // of each slot: the keys that its gradients were written of

  BackwardWorkspace(const BackwardParams& p, const BackwardPlan& plan, Arena& arena) {
    center = arena.take<T>(p.heads * all_rows(p));
    width = arena.take<T>(p.heads * all_rows(p));
    partial_ranges = arena.take<KeyRange>(plan.chunks > 1 ? plan.heads * plan.chunks : 0);
    partial_bytes = plan.chunks > 1 ? KeyGradients<T>::bytes(p) : 0;
    partial_keys = reinterpret_cast<uintptr_t>(arena.take<char>(partial_bytes * plan.heads * plan.chunks));
  }

  KeyGradients<T> partial(const BackwardParams& p, int64_t slot) const {
    Arena arena{partial_keys + uintptr_t(slot * partial_bytes)};
    return KeyGradients<T>(p, arena);
  }
};

// The memory of one thread. It grows with the keys: about 800 bytes for each in float32 with D = 64, half of it for
// weights and their gradients.
template <class E>
struct BackwardScratch {
  using T = Arithmetic<E>;
  using O = Operand<E>;
  int64_t key_stride, tile_row_stride, block_rows;
  int64_t* made;              // identifies the rows, for make_rows
  Row<T>* rows;               // one block
  O *keys, *keys_transposed;  // tiles of [tile, D] and, scaled, of [D, tile]
  O* values_transposed;       // tiles of [Dv, tile]
  O *query, *grad_context;    // one block, [rows, D] and [rows, Dv]
  T* grad_query;              // one block, [rows, D], unless that is written in place
  T *weights, *grads;         // one block, tiles of [rows, tile]
  // the same as operands of products over rows; where these are numbers there is no second copy
  O *query_right, *grad_context_right;  // one block
  O *weights_down, *grads_down;         // one tile of it
  // [rows], the sums of exponentials and of exponentials * dbeta. In double: where one weight is nearly 1, delta is
  // nearly its dbeta, and the gradient is their difference
  double *weight_sum, *grad_sum;
  T* factor;                // [rows], turns exponentials into weights
  T *delta, *delta_rest;    // [rows], and its rounding error
  T* keep;                  // [tile]
  uintptr_t key_gradients;  // only with a single chunk

  BackwardScratch(const BackwardParams& p, const BackwardPlan& plan, Arena& arena) {
    block_rows = p.rows < backward_block_rows ? p.rows : backward_block_rows;
    key_stride = spread_stride<T>(p.head_size);
    tile_row_stride = spread_stride<T>(p.keys < backward_tile_keys ? p.keys : backward_tile_keys);
    made = arena.take<int64_t>(1);
    rows = arena.take<Row<T>>(block_rows);
    keys = arena.take<O>(operands<O>(p.keys) * key_stride);
    keys_transposed = arena.take<O>(plan.tiles * operands<O>(p.head_size) * tile_row_stride);
    values_transposed = arena.take<O>(plan.tiles * operands<O>(p.value_size) * tile_row_stride);
    query = arena.take<O>(block_rows * tile_stride<O>);
    grad_context = arena.take<O>(block_rows * tile_stride<O>);
    grad_query = arena.take<T>(block_rows * key_stride);
    weights = arena.take<T>(plan.tiles * block_rows * tile_stride<T>);
    grads = arena.take<T>(plan.tiles * block_rows * tile_stride<T>);
    if constexpr (is_pair<O>) {
      const int64_t size = operands<O>(block_rows) * tile_stride<O>;
      query_right = arena.take<O>(size);
      grad_context_right = arena.take<O>(size);
      weights_down = arena.take<O>(size);
      grads_down = arena.take<O>(size);
    } else {
      query_right = query;
      grad_context_right = grad_context;
    }
    weight_sum = arena.take<double>(sums_rows());
    grad_sum = arena.take<double>(sums_rows());
    factor = arena.take<T>(block_rows);
    delta = arena.take<T>(block_rows);
    delta_rest = arena.take<T>(block_rows);
    keep = arena.take<T>(backward_tile_keys + 4 * lanes<T>);
    key_gradients = reinterpret_cast<uintptr_t>(arena.take<char>(plan.chunks > 1 ? 0 : KeyGradients<T>::bytes(p)));
  }

  // whole vectors are added to the sums, from any row on
  int64_t sums_rows() const { return block_rows + group_lanes<T>; }
  int64_t tile_offset(int64_t tile) const { return tile * block_rows * tile_stride<T>; }
};

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

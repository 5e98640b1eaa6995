// The backward over keys where heads have 65 to 128 columns. The sums of 32 keys would take all registers of a warp,
// and with 16 whatever is read from shared memory serves too few products. So the four warps of a block share their
// work: each makes the scores of 32 keys by 32 rows, leaves weights and gradients of logits in shared memory, and then
// sums up half of the columns of 32 keys, over 64 rows.
//
// There is one tile of queries and one of context gradients, each with a wait of its own: the first is on its way while
// the gradients of weights are made, the second while the keys' are summed up.
#pragma once

#include "backward_key_kernel.h"

namespace gma {
namespace cuda {
namespace {

template <class scalar, bool general>
struct Exchange {
  static constexpr int head_tile = 128, keys = 64, rows = 64, part = 32, columns = head_tile / 2, threads = 128;
  static constexpr int row_tiles = part / fragment_rows, groups = rows / group_rows;
  static constexpr size_t shared_bytes =
      ((2 * keys + 2 * rows) * head_tile + keys * rows) * sizeof(scalar) + groups * sizeof(RowGroup<general>);
};

// A lane's part of a warp's 32 keys by 32 rows, in a tile of [keys, tile_rows] from row first_row on.
template <class scalar, int tile_rows>
GMA_DEVICE uint32_t& pair_in(scalar* tile, int first_row, int r, int n, int h) {
  const int key = 16 * r + 8 * h + lane_index() / 4, row = first_row + 8 * n + lane_index() % 4 * 2;
  return *reinterpret_cast<uint32_t*>(tile + Tile<scalar, tile_rows>::offset(key, row));
}

template <class scalar, int tile_rows>
GMA_DEVICE void leave(const float (&x)[2][4][4], scalar* tile, int first_row) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        pair_in<scalar, tile_rows>(tile, first_row, r, n, h) = pack<scalar>(x[r][n][2 * h], x[r][n][2 * h + 1]);
}

// What the lane has left, rounded as it is.
template <class scalar, int tile_rows>
GMA_DEVICE void take_back(float (&x)[2][4][4], scalar* tile, int first_row) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t pair = pair_in<scalar, tile_rows>(tile, first_row, r, n, h);
        x[r][n][2 * h] = to_float(scalar{static_cast<uint16_t>(pair)});
        x[r][n][2 * h + 1] = to_float(scalar{static_cast<uint16_t>(pair >> 16)});
      }
}

template <class scalar, bool general>
__global__ void __launch_bounds__(Exchange<scalar, general>::threads, 2)
    backward_key_exchange_kernel(BackwardArguments arguments) {
  using S = Exchange<scalar, general>;
  using Group = RowGroup<general>;
  constexpr int head_tile = S::head_tile, step = S::rows, row_tiles = S::row_tiles;
  const Call& call = arguments.call;
  const Place place = find_place<general, Of::keys>(call, S::keys, 1);
  const int first_key = place.tile * S::keys;
  if (general && first_key >= place.keys) return;
  // which keys are the warp's, and which half of rows and then of columns
  const int key_offset = warp_index() % 2 * S::part, half = warp_index() / 2, warp_key = first_key + key_offset;
  scalar* const query = shared_memory<scalar>();
  scalar* const grad_context = query + step * head_tile;
  scalar* const key = grad_context + step * head_tile;
  scalar* const value = key + S::keys * head_tile;
  scalar* const exchanged = value + S::keys * head_tile;  // [keys, rows]
  Group* const groups = reinterpret_cast<Group*>(exchanged + S::keys * step);

  const RowTiles<S::groups, general> stack = make_row_tiles<S::groups, general>(arguments, call, place);
  int begin, end;
  stack.bounds({first_key, first_key + S::keys}, begin, end);
  using RowCopy = TileCopy<scalar, head_tile, step, S::threads, general>;
  const auto load_next = [&](int tile) {
    if (tile < end) {
      RowCopy copy(rows_of<scalar>(arguments.query, place), tile * step);
      load_rows(stack, tile, copy, query);
      load_groups<S::threads>(stack, tile, groups);
    }
    commit_copies();
    if (tile < end) {
      RowCopy copy(rows_of<scalar>(arguments.grad_context, place), tile * step);
      load_rows(stack, tile, copy, grad_context);
    }
    commit_copies();
  };

  float grad_key[row_tiles][S::columns / 8][4], grad_value[row_tiles][S::columns / 8][4];
  set_all(grad_key, 0);
  set_all(grad_value, 0);
  if (begin < end) {
    using KeyCopy = TileCopy<scalar, head_tile, S::keys, S::threads>;
    KeyCopy(keys_of<scalar>(arguments.key, place), first_key).load(key, keys_in<general>(call, place) - first_key);
    KeyCopy(keys_of<scalar>(arguments.value, place), first_key).load(value, keys_in<general>(call, place) - first_key);
  }
  load_next(begin);
  using Left = SharedRows<scalar, head_tile, row_tiles>;
  scalar* const own = exchanged + key_offset * step;
  const SharedRows<scalar, step, row_tiles> left{exchanged, key_offset * step};
  const uint32_t no_dropout[row_tiles] = {};
  for (int tile = begin; tile < end; ++tile) {
    wait_for_copies<1>();
    __syncthreads();
    const LaneColumns<general> row_columns{groups + half * (S::part / group_rows)};
    const bool hides = some_hide<general, S::part>(row_columns.groups, warp_key, S::part);
    float weights[row_tiles][S::part / 8][4], grads[row_tiles][S::part / 8][4];
    set_all(weights, 0);
    multiply_transposed<scalar, head_tile, S::part>(weights, Left{key, made_anew(key_offset * head_tile)}, query,
                                                    half * S::part * head_tile);
    exponentiate<true>(weights, row_columns, call, warp_key, hides);
    // they would take too many registers until they are needed again
    leave<scalar, step>(weights, own, half * S::part);
    wait_for_copies<0>();
    __syncthreads();
    set_all(grads, 0);
    multiply_transposed<scalar, head_tile, S::part>(grads, Left{value, made_anew(key_offset * head_tile)}, grad_context,
                                                    half * S::part * head_tile);
    take_back<scalar, step>(weights, own, half * S::part);
    differentiate<true>(weights, grads, row_columns, call, no_dropout, warp_key, hides,
                        arguments.grad_logsumexp.data != nullptr);
    multiply_left_onto<scalar, head_tile, step, S::columns>(grad_value, left, grad_context, half * S::columns);
    __syncthreads();
    leave<scalar, step>(grads, own, half * S::part);
    __syncthreads();
    multiply_left_onto<scalar, head_tile, step, S::columns>(grad_key, left, query, half * S::columns);
    __syncthreads();
    load_next(tile + 1);
  }
  store_key_gradients<scalar, general>(grad_key, grad_value, arguments, place, warp_key, half * S::columns);
}

}  // namespace

template <bool general>
std::string backward_over_keys(const BackwardParams& p, const BackwardArguments& arguments, void* stream) {
  return with_quickness(p, [&](auto instance, auto quick) {
    using I = decltype(instance);
    using scalar = typename I::scalar;
    if constexpr (quick() && I::head_tile == 128) {
      using S = Exchange<scalar, general>;
      return launch("backward over keys", backward_key_exchange_kernel<scalar, general>,
                    count_blocks(p, Of::keys, S::keys, 1), S::threads, S::shared_bytes, stream, arguments);
    } else {
      using S = Sizes<scalar, I::head_tile, general, quick()>;
      return launch("backward over keys", backward_key_kernel<scalar, I::head_tile, general, quick()>,
                    count_blocks(p, Of::keys, S::keys, S::parts), S::threads, S::shared_bytes, stream, arguments);
    }
  });
}

}  // namespace cuda
}  // namespace gma

// The attention weights themselves: a first walk over the keys for each row's maximum and sum, a second to write.

#include "dispatch.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

template <class scalar, int head_tile>
__global__ void __launch_bounds__(most_threads, resident_blocks) weights_kernel(WeightsArguments arguments) {
  using T = Tile<scalar, head_tile>;
  constexpr int step = T::forward_step, tile_elements = step * T::stride;
  const Call& call = arguments.call;
  const Place place = find_place(call);
  const int first_row = place.tile * block_rows(), warp_row = first_row + warp_index() * warp_rows;
  scalar* const query = shared_memory<scalar>();
  scalar* const keys = query + block_rows() * T::stride;
  scalar* const weights = static_cast<scalar*>(arguments.weights) + place.flat_head * call.rows * call.keys;

  const int g = lane_index() / 4, t = lane_index() % 4;
  const Row rows[2] = {load_row(call, place, warp_row + g), load_row(call, place, warp_row + g + 8)};
  const int largest = largest_visible(call, place, first_row, block_rows());
  const HeadRows<scalar> key_rows = rows_of<scalar>(arguments.key, place);
  const int tiles = (largest + step - 1) / step;
  const auto load_tile = [&](int turn) {
    const int first_key = turn % tiles * step;
    load_rows<scalar, head_tile>(keys + turn % 2 * tile_elements, key_rows, first_key, step,
                                 [&](int row) { return first_key + row < largest; });
  };

  OnlineSoftmax softmax;
  float inverse[2] = {0, 0};
  if (tiles > 0) {
    load_rows<scalar, head_tile>(query, rows_of<scalar>(arguments.query, place), first_row, block_rows(),
                                 [&](int row) { return first_row + row < call.rows; });
    load_tile(0);
  }
  commit_copies();
  for (int turn = 0; turn < 2 * tiles; ++turn) {
    if (turn + 1 < 2 * tiles) load_tile(turn + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int first_key = turn % tiles * step;
    float x[step / 8][4];
    multiply_transposed<scalar, head_tile, step>(x, query + warp_index() * warp_rows * T::stride,
                                                 keys + turn % 2 * tile_elements);
    scores_to_logits(x, rows, call.prior, first_key);
    if (turn < tiles) {
      float factor[2];
      softmax.add(x, factor);
      if (turn == tiles - 1) {
        softmax.finish();
#pragma unroll
        for (int r = 0; r < 2; ++r) inverse[r] = inverse_sum(softmax.sum[r]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = warp_row + g + i / 2 * 8;
        if (row >= call.rows) continue;
#pragma unroll
        for (int n = 0; n < step / 8; ++n) {
          const int key = first_key + 8 * n + 2 * t + i % 2;
          if (key < call.keys)
            round_to(weights[row * call.keys + key], exp2f(x[n][i] - softmax.maximum[i / 2]) * inverse[i / 2]);
        }
      }
    }
    __syncthreads();
  }
  // what no row of the block sees was not computed
  for (int64_t row = warp_row; row < warp_row + warp_rows && row < call.rows; ++row)
    for (int key = tiles * step + lane_index(); key < call.keys; key += 32)
      round_to(weights[row * call.keys + key], 0.0f);
}

}  // namespace

std::string attention_weights(const ForwardParams& p, void* weights, void* stream) {
  return with_instance(p.scalar_type, p.head_size, [&](auto instance) {
    using I = decltype(instance);
    using Sizes = typename I::Sizes;
    const WeightsArguments arguments{make_call(p), make_matrix(p, p.query, p.rows, p.head_size),
                                     make_matrix(p, p.key, p.keys, p.head_size), weights};
    const int warps = warps_for(p.rows, Sizes::most_warps);
    const size_t shared = (warps * warp_rows + 2 * Sizes::forward_step) * Sizes::stride * sizeof(typename I::scalar);
    return launch("weights", weights_kernel<typename I::scalar, I::head_tile>,
                  p.batches * p.heads * divide_up(p.rows, warps * warp_rows), warps * 32, shared, stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

// The attention weights themselves: a first walk over the keys for each row's maximum and sum, a second to write.

#include "dispatch.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

template <class scalar, int head_tile>
struct Sizes {
  static constexpr int warps = 4, rows = warps * fragment_rows, threads = warps * 32;
  static constexpr int keys = sizeof(scalar) == 4 ? 16 : 32;
  static constexpr size_t shared_bytes = (rows + 2 * keys) * head_tile * sizeof(scalar);
};

template <class scalar, int head_tile>
__global__ void __launch_bounds__(Sizes<scalar, head_tile>::threads, 2) weights_kernel(WeightsArguments arguments) {
  using S = Sizes<scalar, head_tile>;
  constexpr int step = S::keys, tile_elements = step * head_tile;
  const Call& call = arguments.call;
  const Place place = find_place<true, Of::rows>(call, S::rows, 1);
  const int first_row = place.tile * S::rows, warp_row = first_row + warp_index() * fragment_rows;
  scalar* const keys = shared_memory<scalar>();  // two tiles
  scalar* const query = keys + 2 * tile_elements;
  const auto weights_of = [&](int row) {
    const RowOfHead at = unstack(row, place.group);
    return static_cast<scalar*>(arguments.weights) + ((place.flat_head + at.head) * call.rows + at.row) * call.keys;
  };

  const LaneRows<1, true> rows(call, place, warp_row);
  const KeyRange seen = keys_of_rows<true>(call, place, first_row, S::rows);
  const int begin = first_of_tiles(seen), tiles = seen.end > 0 ? (seen.end - begin + step - 1) / step : 0;
  const StackRows<scalar> key_rows = keys_of<scalar>(arguments.key, place);
  const auto load_tile = [&](int turn) {
    const int first_key = begin + turn % tiles * step;
    TileCopy<scalar, head_tile, step, S::threads>(key_rows, first_key)
        .load(keys + turn % 2 * tile_elements, seen.end - first_key);
  };
  if (tiles > 0) {
    TileCopy<scalar, head_tile, S::rows, S::threads, true>(rows_of<scalar>(arguments.query, place), first_row)
        .load(query, place.rows - first_row);
    load_tile(0);
  }
  commit_copies();

  OnlineSoftmax<1> softmax;
  float inverse[2] = {0, 0};
  const float no_shift[2] = {};
  const SharedRows<scalar, head_tile, 1> left{query + warp_index() * fragment_rows * head_tile};
  for (int turn = 0; turn < 2 * tiles; ++turn) {
    if (turn + 1 < 2 * tiles) load_tile(turn + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int first_key = begin + turn % tiles * step;
    float x[1][step / 8][4];
    set_all(x, 0);
    multiply_transposed<scalar, head_tile, step>(x, left, keys + turn % 2 * tile_elements);
    rows.to_logits(x, call.prior, first_key, call.score_scale, no_shift);
    if (turn < tiles) {
      float factor[2];
      softmax.add(x, factor);
      if (turn == tiles - 1) {
        softmax.finish();
#pragma unroll
        for (int r = 0; r < 2; ++r)
          inverse[r] = !rows.sees(r) || is_sound(call, place, rows.index(r)) ? inverse_sum(softmax.sum[r]) : NAN;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (rows.index(i / 2) >= place.rows) continue;
        scalar* const to = weights_of(rows.index(i / 2));
        const KeyRange row_keys = rows.keys(i / 2);
#pragma unroll
        for (int n = 0; n < step / 8; ++n) {
          const int key = first_key + 8 * n + lane_index() % 4 * 2 + i % 2;
          if (key >= call.keys) continue;
          const float weight = exp2_fast(x[0][n][i] - softmax.maximum[i / 2]) * inverse[i / 2];
          round_to(to[key], row_keys.begin <= key && key < row_keys.end ? weight : 0);
        }
      }
    }
    __syncthreads();
  }
  // what no row of the block sees was not computed
  for (int row = warp_row; row < warp_row + fragment_rows && row < place.rows; ++row) {
    scalar* const to = weights_of(row);
    for (int key = lane_index(); tiles > 0 && key < begin; key += 32) round_to(to[key], 0.0f);
    for (int key = (tiles > 0 ? begin + tiles * step : 0) + lane_index(); key < call.keys; key += 32)
      round_to(to[key], 0.0f);
  }
}

}  // namespace

std::string attention_weights(const ForwardParams& p, void* weights, void* stream) {
  const std::string error = refuse(p);
  if (!error.empty()) return error;
  return with_instance(p.scalar_type, p.head_size, [&](auto instance) {
    using I = decltype(instance);
    const WeightsArguments arguments{make_call(p), row_matrix(p, p.query, p.head_size),
                                     key_matrix(p, p.key, p.head_size), weights};
    using S = Sizes<typename I::scalar, I::head_tile>;
    return launch("weights", weights_kernel<typename I::scalar, I::head_tile>, count_blocks(p, Of::rows, S::rows, 1),
                  S::threads, S::shared_bytes, stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

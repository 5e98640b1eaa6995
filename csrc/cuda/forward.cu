// Forward: a block of threads takes up to 64 query rows of one head, and walks once over the keys they see.

#include "decode.h"
#include "dispatch.h"
#include "dropout.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

template <class scalar, int head_tile>
__global__ void __launch_bounds__(most_threads, resident_blocks) forward_kernel(ForwardArguments arguments) {
  using T = Tile<scalar, head_tile>;
  constexpr int step = T::forward_step, tile_elements = step * T::stride;
  const Call& call = arguments.call;
  const Place place = find_place(call);
  // the last rows of a sentence usually see most: they go first
  const int row_tiles = (call.rows + block_rows() - 1) / block_rows();
  const int first_row = (row_tiles - 1 - place.tile) * block_rows(), warp_row = first_row + warp_index() * warp_rows;
  scalar* const query = shared_memory<scalar>();
  scalar* const keys = query + block_rows() * T::stride;
  scalar* const values = keys + 2 * tile_elements;

  const int g = lane_index() / 4;
  const Row rows[2] = {load_row(call, place, warp_row + g), load_row(call, place, warp_row + g + 8)};
  const int largest = largest_visible(call, place, first_row, block_rows());
  const HeadRows<scalar> key_rows = rows_of<scalar>(arguments.key, place);
  const HeadRows<scalar> value_rows = rows_of<scalar>(arguments.value, place);
  const auto load_tile = [&](int tile) {
    const auto seen = [&](int row) { return tile * step + row < largest; };
    load_rows<scalar, head_tile>(keys + tile % 2 * tile_elements, key_rows, tile * step, step, seen);
    load_rows<scalar, head_tile>(values + tile % 2 * tile_elements, value_rows, tile * step, step, seen);
  };

  float context[head_tile / 8][4];
  set_zero(context);
  OnlineSoftmax softmax;
  const Dropout dropout = make_dropout(call, place);
  const int tiles = (largest + step - 1) / step;
  if (tiles > 0) {
    load_rows<scalar, head_tile>(query, rows_of<scalar>(arguments.query, place), first_row, block_rows(),
                                 [&](int row) { return first_row + row < call.rows; });
    load_tile(0);
  }
  commit_copies();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load_tile(tile + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const uint32_t kept = kept_in_fragment<step / 8>(
        dropout, [&](int n) { return kept_by_rows(dropout, warp_row, tile * step + 8 * n); });
    float weights[step / 8][4];
    multiply_transposed<scalar, head_tile, step>(weights, query + warp_index() * warp_rows * T::stride,
                                                 keys + tile % 2 * tile_elements);
    scores_to_logits(weights, rows, call.prior, tile * step);
    float factor[2];
    softmax.add(weights, factor);
    if (dropout.on) drop(weights, kept, 1.0f);
#pragma unroll
    for (int n = 0; n < head_tile / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) context[n][i] *= factor[i / 2];
    multiply_onto<scalar, head_tile, step, head_tile>(context, weights, values + tile % 2 * tile_elements);
    __syncthreads();
  }

  softmax.finish();
  const float factor[2] = {inverse_sum(softmax.sum[0]) * call.keep_scale,
                           inverse_sum(softmax.sum[1]) * call.keep_scale};
  store_fragment<scalar, head_tile>(context, factor, rows_of<scalar>(arguments.context, place), warp_row, call.rows, 0);
  if (lane_index() % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + g + 8 * r;
    if (row < call.rows) *at_row(call.logsumexp, place, row) = log_of_sum(softmax.maximum[r], softmax.sum[r]);
  }
}

}  // namespace

bool serves(ScalarType scalar_type, int64_t head_size, int64_t value_size) {
  const int64_t size = larger(head_size, value_size);
  return scalar_type != ScalarType::float64 && head_size >= 1 && value_size >= 1 && size <= GMA_LARGEST_HEAD_TILE;
}

size_t forward_workspace(const ForwardParams& p) { return p.rows == 1 ? decode_workspace(p) : 0; }

std::string forward(const ForwardParams& p, void* workspace, void* stream) {
  if (p.rows == 1) return decode(p, workspace, stream);
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    using Sizes = typename I::Sizes;
    ForwardArguments arguments{};
    arguments.call = make_call(p);
    arguments.query = make_matrix(p, p.query, p.rows, p.head_size);
    arguments.key = make_matrix(p, p.key, p.keys, p.head_size);
    arguments.value = make_matrix(p, p.value, p.keys, p.value_size);
    arguments.context = make_matrix(p, p.context, p.rows, p.value_size);
    const int warps = warps_for(p.rows, Sizes::most_warps);
    const size_t shared = (warps * warp_rows + 4 * Sizes::forward_step) * Sizes::stride * sizeof(typename I::scalar);
    return launch("forward", forward_kernel<typename I::scalar, I::head_tile>,
                  p.batches * p.heads * divide_up(p.rows, warps * warp_rows), warps * 32, shared, stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

// Backward, over blocks of keys: gradients of keys and values. Everything is transposed: a lane's fragment has keys for
// rows and query rows for columns.

#include "backward.h"
#include "dispatch.h"
#include "dropout.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

// A query row, as seen from the keys. Of impossible values its logsumexp, NaN then, is enough to tell.
struct Column {
  RowPrior<float> prior;
  int visible;
  float logsumexp, delta, factor;  // the first of base 2; see the kernel over queries
};

GMA_DEVICE Column load_column(const BackwardArguments& arguments, const Place& place, int index) {
  const Call& call = arguments.call;
  const Row row = load_row(call, place, index);
  if (row.visible == 0) return {};
  const int64_t flat_row = place.flat_head * call.rows + index;
  return {row.prior, row.visible, *at_row(call.logsumexp, place, index) * static_cast<float>(log2_e),
          arguments.delta[flat_row], arguments.factor[flat_row]};
}

// The first tile of `step` rows, from `tile` on, in which a row sees more than `keys` keys.
template <int step>
GMA_DEVICE int next_tile(const BackwardArguments& arguments, const Place& place, int tile, int keys) {
  const int groups = (arguments.call.rows + warp_rows - 1) / warp_rows;
  const int32_t* largest = arguments.largest + place.flat_head * groups;
  for (; tile * step < arguments.call.rows; ++tile)
    for (int i = tile * (step / warp_rows); i < (tile + 1) * (step / warp_rows) && i < groups; ++i)
      if (largest[i] > keys) return tile;
  return tile;
}

// Scores and gradients of weights, [16 keys, step rows], become weights with dropout, but for its scale, and gradients
// of logits. columns: the rows of the tile; kept: see dropout.h.
template <int tiles>
GMA_DEVICE void differentiate(float (&weights)[tiles][4], float (&grads)[tiles][4], const Column* columns,
                              const Call& call, uint32_t kept, int warp_key) {
  const int first_key = warp_key + lane_index() / 4, t = lane_index() % 4;
  with_prior(call.prior, [&](auto kind) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Column& column = columns[8 * n + 2 * t + e];
        const float distance = static_cast<float>(first_key + 1 - column.prior.peak);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = 2 * r + e, key = first_key + 8 * r;
          const float exponent = logit<decltype(kind)::value>(column.prior, call.score_scale, weights[n][i],
                                                              distance + static_cast<float>(8 * r));
          const float weight = key < column.visible ? exp2f(exponent - column.logsumexp) * column.factor : 0;
          const bool keep = kept >> (4 * n + i) & 1;
          const float grad = keep ? grads[n][i] * call.keep_scale : 0;
          grads[n][i] = weight == 0 ? 0 : grad_of_logit(column.visible, weight, grad, column.delta);
          weights[n][i] = keep ? weight : 0;
        }
      }
  });
}

// As much of the columns of both gradients as one block of threads keeps in registers; others take the rest.
template <class scalar, int head_tile>
struct Part {
  static constexpr int most = sizeof(scalar) == 4 ? 64 : 128, columns = head_tile < most ? head_tile : most;
  static constexpr int count = head_tile / columns;
};

template <class scalar, int head_tile>
__global__ void __launch_bounds__(most_threads, resident_blocks) backward_key_kernel(BackwardArguments arguments) {
  using T = Tile<scalar, head_tile>;
  constexpr int step = T::backward_step, tile_elements = step * T::stride;
  constexpr int columns = Part<scalar, head_tile>::columns, parts = Part<scalar, head_tile>::count;
  const Call& call = arguments.call;
  const Place place = find_place(call);
  const int first_key = place.tile / parts * block_rows(), warp_key = first_key + warp_index() * warp_rows;
  const int first_column = place.tile % parts * columns;
  scalar* const key = shared_memory<scalar>();
  scalar* const value = key + block_rows() * T::stride;
  scalar* const queries = value + block_rows() * T::stride;
  scalar* const grad_contexts = queries + 2 * tile_elements;
  Column* const tile_rows = reinterpret_cast<Column*>(grad_contexts + 2 * tile_elements);  // [2, step]
  const int warp_offset = warp_index() * warp_rows * T::stride;

  const HeadRows<scalar> query_rows = rows_of<scalar>(arguments.query, place);
  const HeadRows<scalar> grad_rows = rows_of<scalar>(arguments.grad_context, place);
  const auto load_tile = [&](int tile, int stage) {
    // a row that sees nothing may hold anything
    const auto sees = [&](int row) { return visible_of(call, place, tile * step + row) > 0; };
    load_rows<scalar, head_tile>(queries + stage * tile_elements, query_rows, tile * step, step, sees);
    load_rows<scalar, head_tile>(grad_contexts + stage * tile_elements, grad_rows, tile * step, step, sees);
    for (int row = static_cast<int>(threadIdx.x); row < step; row += static_cast<int>(blockDim.x))
      tile_rows[stage * step + row] = load_column(arguments, place, tile * step + row);
  };

  float grad_key[columns / 8][4], grad_value[columns / 8][4];
  set_zero(grad_key);
  set_zero(grad_value);
  const Dropout dropout = make_dropout(call, place);
  int tile = next_tile<step>(arguments, place, 0, first_key);
  if (tile * step < call.rows) {
    const auto exists = [&](int row) { return first_key + row < call.keys; };
    load_rows<scalar, head_tile>(key, rows_of<scalar>(arguments.key, place), first_key, block_rows(), exists);
    load_rows<scalar, head_tile>(value, rows_of<scalar>(arguments.value, place), first_key, block_rows(), exists);
    load_tile(tile, 0);
  }
  commit_copies();
  for (int stage = 0; tile * step < call.rows; stage ^= 1) {
    const int following = next_tile<step>(arguments, place, tile + 1, first_key);
    if (following * step < call.rows) load_tile(following, stage ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const uint32_t kept = kept_in_fragment<step / 8>(
        dropout, [&](int n) { return kept_by_keys(dropout, warp_key, tile * step + 8 * n); });
    float weights[step / 8][4], grads[step / 8][4];
    multiply_transposed<scalar, head_tile, step>(weights, key + warp_offset, queries + stage * tile_elements);
    multiply_transposed<scalar, head_tile, step>(grads, value + warp_offset, grad_contexts + stage * tile_elements);
    differentiate(weights, grads, tile_rows + stage * step, call, kept, warp_key);
    multiply_onto<scalar, head_tile, step, columns>(grad_value, weights,
                                                    grad_contexts + stage * tile_elements + first_column);
    multiply_onto<scalar, head_tile, step, columns>(grad_key, grads, queries + stage * tile_elements + first_column);
    __syncthreads();
    tile = following;
  }

  const float scale[2] = {call.scale, call.scale}, keep_scale[2] = {call.keep_scale, call.keep_scale};
  store_fragment<scalar, columns>(grad_key, scale, rows_of<scalar>(arguments.grad_key, place), warp_key, call.keys,
                                  first_column);
  store_fragment<scalar, columns>(grad_value, keep_scale, rows_of<scalar>(arguments.grad_value, place), warp_key,
                                  call.keys, first_column);
}

}  // namespace

std::string backward_over_keys(const BackwardParams& p, const BackwardArguments& arguments, void* stream) {
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    using Sizes = typename I::Sizes;
    constexpr int parts = Part<typename I::scalar, I::head_tile>::count;
    const int warps = warps_for(p.keys, Sizes::most_warps);
    const size_t rows = 2 * warps * warp_rows + 4 * Sizes::backward_step;
    const size_t shared = rows * Sizes::stride * sizeof(typename I::scalar) + 2 * Sizes::backward_step * sizeof(Column);
    return launch("backward over keys", backward_key_kernel<typename I::scalar, I::head_tile>,
                  p.batches * p.heads * divide_up(p.keys, warps * warp_rows) * parts, warps * 32, shared, stream,
                  arguments);
  });
}

}  // namespace cuda
}  // namespace gma

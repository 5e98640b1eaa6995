// Backward, over blocks of query rows: gradients of queries, centers and widths.
//
// Two walks over the keys the rows see. The first sums up delta_i = sum_j beta_ij dbeta_ij; taking it from the very
// numbers it is subtracted from in the second makes ds nearly 0 in one-hot rows, where grad_context.context would
// leave the rounding errors of a 16-bit context. It also sums up the weights, because a rounded logsumexp makes all of
// a row's too large or too small. Both sums are kept for the kernel over keys.

#include "backward.h"
#include "dispatch.h"
#include "dropout.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

// Sums over j of ds_ij times what the derivatives of the log-prior need of position j, of the lane's columns.
template <int tiles>
GMA_DEVICE void add_prior_terms(const float (&grads)[tiles][4], const Row (&rows)[2], PriorKind prior, int first_key,
                                float (&center)[2], float (&width)[2]) {
  const int first = first_key + 2 * (lane_index() % 4);
  with_prior(prior, [&](auto kind) {
    if constexpr (decltype(kind)::value != PriorKind::none) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float t = static_cast<float>(first + 1 - rows[r].prior.peak);
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const auto terms = prior_terms<decltype(kind)::value, DeviceMath>(rows[r].prior,
                                                                              t + static_cast<float>(8 * n + e));
            center[r] += grads[n][2 * r + e] * terms.center;
            width[r] += grads[n][2 * r + e] * terms.width;
          }
      }
    }
  });
}

// sums += the lane's columns of each of its two rows; x is used up. In pairs, because a row's one large term would be
// rounded again with every small one added to it.
template <int tiles>
GMA_DEVICE void add_pairwise(float (&x)[tiles][4], float (&sums)[2]) {
#pragma unroll
  for (int half = tiles / 2; half > 0; half /= 2)
#pragma unroll
    for (int n = 0; n < half; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] += x[n + half][i];
#pragma unroll
  for (int r = 0; r < 2; ++r) sums[r] += x[0][2 * r] + x[0][2 * r + 1];
}

template <class scalar, int head_tile>
__global__ void __launch_bounds__(most_threads, resident_blocks) backward_query_kernel(BackwardArguments arguments) {
  using T = Tile<scalar, head_tile>;
  constexpr int step = T::backward_step, tile_elements = step * T::stride;
  const Call& call = arguments.call;
  const Place place = find_place(call);
  const int row_tiles = (call.rows + block_rows() - 1) / block_rows();
  const int first_row = (row_tiles - 1 - place.tile) * block_rows(), warp_row = first_row + warp_index() * warp_rows;
  scalar* const query = shared_memory<scalar>();
  scalar* const grad_context = query + block_rows() * T::stride;
  scalar* const keys = grad_context + block_rows() * T::stride;
  scalar* const values = keys + 2 * tile_elements;
  const int warp_offset = warp_index() * warp_rows * T::stride;

  const int g = lane_index() / 4;
  const Row rows[2] = {load_row(call, place, warp_row + g), load_row(call, place, warp_row + g + 8)};
  float logsumexp[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    logsumexp[r] = rows[r].visible == 0
                       ? 0
                       : *at_row(call.logsumexp, place, warp_row + g + 8 * r) * static_cast<float>(log2_e);
  const int largest = largest_visible(call, place, first_row, block_rows());
  const HeadRows<scalar> key_rows = rows_of<scalar>(arguments.key, place);
  const HeadRows<scalar> value_rows = rows_of<scalar>(arguments.value, place);
  const int tiles = (largest + step - 1) / step;
  const auto load_tile = [&](int turn) {
    const int first_key = turn % tiles * step;
    const auto seen = [&](int row) { return first_key + row < largest; };
    load_rows<scalar, head_tile>(keys + turn % 2 * tile_elements, key_rows, first_key, step, seen);
    load_rows<scalar, head_tile>(values + turn % 2 * tile_elements, value_rows, first_key, step, seen);
  };

  float grad_query[head_tile / 8][4], delta[2] = {0, 0}, total[2] = {0, 0}, center[2] = {0, 0}, width[2] = {0, 0};
  set_zero(grad_query);
  const Dropout dropout = make_dropout(call, place);
  if (tiles > 0) {
    const auto exists = [&](int row) { return first_row + row < call.rows; };
    load_rows<scalar, head_tile>(query, rows_of<scalar>(arguments.query, place), first_row, block_rows(), exists);
    load_rows<scalar, head_tile>(grad_context, rows_of<scalar>(arguments.grad_context, place), first_row, block_rows(),
                                 exists);
    load_tile(0);
  }
  commit_copies();
  for (int turn = 0; turn < 2 * tiles; ++turn) {
    if (turn + 1 < 2 * tiles) load_tile(turn + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int first_key = turn % tiles * step;
    const uint32_t kept = kept_in_fragment<step / 8>(
        dropout, [&](int n) { return kept_by_rows(dropout, warp_row, first_key + 8 * n); });
    float weights[step / 8][4], grads[step / 8][4];
    multiply_transposed<scalar, head_tile, step>(weights, query + warp_offset, keys + turn % 2 * tile_elements);
    scores_to_logits(weights, rows, call.prior, first_key);
    multiply_transposed<scalar, head_tile, step>(grads, grad_context + warp_offset, values + turn % 2 * tile_elements);
    if (dropout.on) drop(grads, kept, call.keep_scale);
#pragma unroll
    for (int n = 0; n < step / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = exp2f(weights[n][i] - logsumexp[i / 2]);
        weights[n][i] = weight;
        // what a weight of 0 is multiplied with may be anything
        if (weight == 0) grads[n][i] = 0;
      }
    if (turn < tiles) {
#pragma unroll
      for (int n = 0; n < step / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) grads[n][i] *= weights[n][i];
      add_pairwise(grads, delta);
      add_pairwise(weights, total);
      if (turn == tiles - 1) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          total[r] = inverse_sum(sum_of_row(total[r]));
          delta[r] = sum_of_row(delta[r]) * total[r];
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < step / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          grads[n][i] = grad_of_logit(rows[i / 2].visible, weights[n][i] * total[i / 2], grads[n][i], delta[i / 2]);
      add_prior_terms(grads, rows, call.prior, first_key, center, width);
      multiply_onto<scalar, head_tile, step, head_tile>(grad_query, grads, keys + turn % 2 * tile_elements);
    }
    __syncthreads();
  }

  const float scale[2] = {call.scale, call.scale};
  store_fragment<scalar, head_tile>(grad_query, scale, rows_of<scalar>(arguments.grad_query, place), warp_row,
                                    call.rows, 0);
  const int warp_largest = largest_of_warp(rows[0].visible > rows[1].visible ? rows[0].visible : rows[1].visible);
  if (lane_index() == 0 && warp_row < call.rows)
    arguments.largest[place.flat_head * ((call.rows + warp_rows - 1) / warp_rows) + warp_row / warp_rows] =
        warp_largest;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    center[r] = sum_of_row(center[r]);
    width[r] = sum_of_row(width[r]);
    const int row = warp_row + g + 8 * r;
    if (lane_index() % 4 != 0 || row >= call.rows) continue;
    with_prior(call.prior, [&](auto kind) {
      const PriorFactors<float> factors = prior_factors<decltype(kind)::value>(rows[r].prior);
      *at_row(arguments.grad_center, place, row) = factors.center * center[r];
      *at_row(arguments.grad_width, place, row) = factors.width * width[r];
    });
    arguments.delta[place.flat_head * call.rows + row] = delta[r];
    arguments.factor[place.flat_head * call.rows + row] = total[r];
  }
}

}  // namespace

std::string backward_over_queries(const BackwardParams& p, const BackwardArguments& arguments, void* stream) {
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    using Sizes = typename I::Sizes;
    const int warps = warps_for(p.rows, Sizes::most_warps);
    const size_t rows = 2 * warps * warp_rows + 4 * Sizes::backward_step;
    return launch("backward over queries", backward_query_kernel<typename I::scalar, I::head_tile>,
                  p.batches * p.heads * divide_up(p.rows, warps * warp_rows), warps * 32,
                  rows * Sizes::stride * sizeof(typename I::scalar), stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

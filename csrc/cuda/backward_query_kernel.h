// Backward, over blocks of query rows: gradients of queries, centers and widths.
//
// ds_ij = beta_ij (dbeta_ij - delta_i), delta_i = sum_j beta_ij dbeta_ij = dcontext_i . context_i
//
// delta is first taken from the context. What its rounding makes wrong is sum_j ds_ij, which should be 0, and the
// kernel over keys gets a delta corrected by that. Where it is a large part of all ds_ij, as in rows with one weight, a
// second walk over the keys makes the gradients of the block's rows anew from the corrected one. With dropout and in
// float32 that is so for all rows: the first walk then has no product with the keys, and also finds what brings the
// weights to a sum of 1, which the rounding of the logsumexp in float32 would else show.
//
// A gradient of the logsumexp is what ds_ij sum up to: it is taken off delta.
#pragma once

#include <climits>

#include "backward.h"
#include "dropout.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

template <class scalar, int head_tile, bool general, bool quick>
struct Sizes {
  static constexpr bool is_wide = sizeof(scalar) == 4;
  // heads of 128 columns take a block's shared memory so that few fit: the more warps share its tiles of keys
  static constexpr int warps = is_wide && head_tile > 128 ? 2 : quick && !general && head_tile == 128 ? 8 : 4;
  static constexpr int row_tiles = quick && head_tile <= 64 ? 2 : 1;
  static constexpr int warp_rows = row_tiles * fragment_rows, rows = warps * warp_rows, threads = warps * 32;
  static constexpr int keys = head_tile <= (is_wide ? 64 : 128) ? 32 : 16;
  // where a warp has few rows, what is read of them weighs most
  static constexpr bool holds_rows = quick && row_tiles == 1;
  // one tile at a time where two take too much shared memory
  static constexpr int stages = is_wide && head_tile > 128 ? 1 : 2;
  static constexpr size_t shared_bytes = (2 * rows + 2 * stages * keys) * head_tile * sizeof(scalar) +
                                         rows * (sizeof(RowFacts<general>) + 2 * sizeof(float));
};

// dcontext . context of the rows a lane holds, of which its tile of dcontext is in shared memory.
template <class scalar, int head_tile, int row_tiles, bool general>
GMA_DEVICE void load_delta(float (&delta)[2 * row_tiles], const LaneRows<row_tiles, general, false>& rows,
                           const scalar* grad_context, const StackRows<scalar>& context) {
  using T = Tile<scalar, head_tile>;
  const int t = lane_index() % 4;
#pragma unroll
  for (int i = 0; i < 2 * row_tiles; ++i) {
    delta[i] = 0;
    const scalar* const row = context[rows.index(i)];
    if (rows.sees(i))
      for (int column = t * T::chunk; column < context.columns; column += 4 * T::chunk) {
        const scalar* grad = grad_context + T::offset(rows.index(i) - rows.first, column);
        float x[T::chunk];
        load_chunk(x, row, column, context.columns, context.aligned);
#pragma unroll
        for (int e = 0; e < T::chunk; ++e) delta[i] += x[e] * to_float(grad[e]);
      }
    delta[i] = sum_of_row(delta[i]);
  }
}

// Where the first key is that one of two rows sees; far right if none sees any.
GMA_DEVICE int smallest_begin(const KeyRange& a, const KeyRange& b) {
  const int first = a.end > 0 ? a.begin : INT_MAX, second = b.end > 0 ? b.begin : INT_MAX;
  return first < second ? first : second;
}

template <class scalar, int head_tile, bool general, bool quick>
__global__ void __launch_bounds__(Sizes<scalar, head_tile, general, quick>::threads,
                                  Sizes<scalar, head_tile, general, quick>::shared_bytes > most_shared_bytes / 2 ? 1
                                                                                                                 : 2)
    backward_query_kernel(BackwardArguments arguments) {
  using S = Sizes<scalar, head_tile, general, quick>;
  constexpr int step = S::keys, tile_elements = step * head_tile, row_tiles = S::row_tiles, count = 2 * row_tiles;
  const Call& call = arguments.call;
  const Place place = find_place<general, Of::rows>(call, S::rows, 1);
  const int row_tile_count = (rows_in<general>(call, place) + S::rows - 1) / S::rows;
  if (general && place.tile >= row_tile_count) return;
  const int first_row = (row_tile_count - 1 - place.tile) * S::rows, warp_row = first_row + warp_index() * S::warp_rows;
  scalar* const keys = shared_memory<scalar>();
  scalar* const values = keys + S::stages * tile_elements;
  scalar* const query = values + S::stages * tile_elements;
  scalar* const grad_context = query + S::rows * head_tile;
  const int warp_offset = warp_index() * S::warp_rows * head_tile;

  RowFacts<general>* const facts = reinterpret_cast<RowFacts<general>*>(grad_context + S::rows * head_tile);
  // registers are scarce: of each row also these lie in shared memory
  float* const shifts = reinterpret_cast<float*>(facts + S::rows);
  float* const deltas = shifts + S::rows;
  int* const repeats = reinterpret_cast<int*>(keys);  // [warps], between walks

  const LaneRows<row_tiles, general, false> rows(call, place, warp_row, facts + warp_index() * S::warp_rows);
  const KeyRange seen = keys_of_rows<general>(call, place, first_row, S::rows);
  const int begin = general ? first_of_tiles(seen) : 0, tiles = seen.end > 0 ? (seen.end - begin + step - 1) / step : 0;
  using Copy = TileCopy<scalar, head_tile, step, S::threads>;
  const Copy first_key_copy(keys_of<scalar>(arguments.key, place), begin);
  const Copy first_value_copy(keys_of<scalar>(arguments.value, place), begin);
  if (tiles > 0) {
    using RowCopy = TileCopy<scalar, head_tile, S::rows, S::threads, general>;
    RowCopy(rows_of<scalar>(arguments.query, place), first_row).load(query, rows_in<general>(call, place) - first_row);
    RowCopy(rows_of<scalar>(arguments.grad_context, place), first_row)
        .load(grad_context, rows_in<general>(call, place) - first_row);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  // what the sum of ds_ij over j is
  const auto grad_logsumexp_of = [&](int i) {
    if constexpr (general)
      if (arguments.grad_logsumexp.data != nullptr && rows.sees(i))
        return *at_row(arguments.grad_logsumexp, place, rows.index(i));
    return 0.0f;
  };
  float factor[count];
  {
    float delta[count] = {};
    if (tiles > 0)
      load_delta<scalar, head_tile>(delta, rows, grad_context + warp_offset, rows_of<scalar>(arguments.context, place));
#pragma unroll
    for (int i = 0; i < count; ++i) {
      factor[i] = 1;
      const int row = rows.index(i);
      if (lane_index() % 4 != 0) continue;
      deltas[row - first_row] = delta[i] - grad_logsumexp_of(i);
      shifts[row - first_row] = rows.sees(i) ? *at_row(call.logsumexp, place, row) * static_cast<float>(-log2_e) : 0;
    }
  }

  using Shared = SharedRows<scalar, head_tile, row_tiles>;
  using Left = std::conditional_t<S::holds_rows, ResidentRows<scalar, head_tile, row_tiles>, Shared>;
  const Left left(Shared{query + warp_offset}), left_grad(Shared{grad_context + warp_offset});
  float grad_query[row_tiles][head_tile / 8][4];
  PriorSums sums[count];
  [[maybe_unused]] const Dropout dropout = make_dropout(call, place);
  for (int walk = 0; walk < 2; ++walk) {
    // of a row: the sums of ds, of |ds| and of the weights
    float excess[count] = {}, size[count] = {}, total[count] = {};
    set_all(grad_query, 0);
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] = {};
    Copy key_copy = first_key_copy, value_copy = first_value_copy;
    const auto load_tile = [&](int tile) {
      const int stage = tile % S::stages * tile_elements;
      const int first_key = begin + tile * step, hidden = general ? seen.begin - first_key : 0;
      key_copy.load(keys + stage, seen.end - first_key, hidden);
      value_copy.load(values + stage, seen.end - first_key, hidden);
    };
    if (tiles > 0) load_tile(0);
    commit_copies();
    for (int tile = 0; tile < tiles; ++tile) {
      if (S::stages == 2 && tile + 1 < tiles) load_tile(tile + 1);
      if (S::stages == 2) commit_copies();
      wait_for_copies<S::stages - 1>();
      __syncthreads();
      const int first_key = begin + tile * step, stage = tile % S::stages * tile_elements;
      if (rows.see(first_key, step)) {
        [[maybe_unused]] uint32_t kept[row_tiles] = {};
        if constexpr (!quick)
          if (dropout.on)
            find_kept<step / 8>(kept, [&](int r, int n) {
              return kept_by_rows(dropout, warp_row + r * fragment_rows, first_key + 8 * n);
            });
        float shift[count];
#pragma unroll
        for (int i = 0; i < count; ++i) shift[i] = shifts[rows.index(i) - first_row];
        float weights[row_tiles][step / 8][4], grads[row_tiles][step / 8][4];
        set_all(weights, 0);
        multiply_transposed<scalar, head_tile, step>(weights, left, keys + stage);
        rows.to_logits(weights, call.prior, first_key, call.score_scale, shift);
        set_all(grads, 0);
        multiply_transposed<scalar, head_tile, step>(grads, left_grad, values + stage);
        if constexpr (!quick)
          if (dropout.on) drop(grads, kept, call.keep_scale);
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const float delta = deltas[rows.index(i) - first_row];
          float tile_excess = 0, tile_total = 0;
#pragma unroll
          for (int n = 0; n < step / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& grad = grads[i / 2][n][i % 2 * 2 + e];
              float weight = exp2_fast(weights[i / 2][n][i % 2 * 2 + e]);
              if constexpr (!quick) {
                tile_total += weight;
                weight *= factor[i];
              }
              grad = weight * (grad - delta);
              tile_excess += grad;
              if constexpr (quick) size[i] += fabsf(grad);
            }
          // tile by tile, because a row's one large term would be rounded again with every small one added to it
          excess[i] += tile_excess;
          total[i] += tile_total;
        }
        if (quick || walk == 1) {
          rows.add_prior_terms(sums, grads, call.prior, first_key);
          multiply_onto<scalar, head_tile, step, head_tile>(grad_query, grads, keys + stage);
        }
      }
      __syncthreads();
      if (S::stages == 1 && tile + 1 < tiles) {
        load_tile(tile + 1);
        commit_copies();
      }
    }
    bool repeat = false;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if constexpr (!quick)
        if (walk == 0) factor[i] = inverse_sum(sum_of_row(total[i]));
      excess[i] = sum_of_row(excess[i]) * (quick || walk == 1 ? 1 : factor[i]) - grad_logsumexp_of(i);
      if (lane_index() % 4 == 0) deltas[rows.index(i) - first_row] += excess[i];
      if constexpr (quick) {
        const float unit = 0.25f * unit_of(scalar{});
        const float wrong = fabsf(excess[i]), amplified = wrong * fmaxf(1, fabsf(rows.facts(i).curve.a));
        repeat |= wrong > unit * sum_of_row(size[i]) && amplified > 0.5f * unit;
      }
    }
    if constexpr (quick) {
      const int one = largest_of_warp(repeat ? 1 : 0);
      if (lane_index() == 0) repeats[warp_index()] = one;
      __syncthreads();
      int any = 0;
#pragma unroll
      for (int warp = 0; warp < S::warps; ++warp) any |= repeats[warp];
      __syncthreads();
      if (any == 0) break;
    }
  }

  RowGroup<general>* const groups = static_cast<RowGroup<general>*>(arguments.groups) + place.first_group;
  const int group_count = (rows_in<general>(call, place) + group_rows - 1) / group_rows;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int row = rows.index(i);
    const RowFacts<general> row_facts = rows.facts(i);
    const KeyRange row_keys = row_facts.keys();
    // the weight of the only key a row sees is 1, whatever its logit, but the logsumexp is not
    const bool has_gradient =
        row_keys.end - row_keys.begin > (general && arguments.grad_logsumexp.data != nullptr ? 0 : 1);
#pragma unroll
    for (int n = 0; n < head_tile / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = grad_query[i / 2][n][i % 2 * 2 + e];
        x = has_gradient ? x * call.scale : 0;
      }
    PriorSums sum = sums[i];
    sum.center = sum_of_row(sum.center);
    sum.width = sum_of_row(sum.width);
    if (lane_index() % 4 != 0 || row >= group_count * group_rows) continue;
    if (row < rows_in<general>(call, place)) {
      PriorFactors<float> grad{0, 0};
      if (has_gradient && call.prior != PriorKind::none)
        grad = sum.finish(call.prior, row_facts.curve, load_prior(call, place, row, row_keys));
      if (row_keys.end > 0 && !is_sound(call, place, row)) grad = {NAN, NAN};
      *at_row(arguments.grad_center, place, row) = grad.center;
      *at_row(arguments.grad_width, place, row) = grad.width;
    }
    RowGroup<general>& group = groups[row / group_rows];
    const int at = row % group_rows;
    group.end[at] = row_keys.end;
    if constexpr (general) group.begin[at] = row_keys.begin;
    group.peak[at] = row_facts.curve.peak;
    group.a[at] = row_facts.curve.a;
    group.b[at] = row_facts.curve.b;
    group.shift[at] = shifts[row - first_row];
    group.delta[at] = row_keys.end > 0 ? deltas[row - first_row] : 0;
    group.factor[at] = factor[i];
  }
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    const int first = warp_row + r * fragment_rows;
    store_fragment<scalar, head_tile>(grad_query[r], rows_of<scalar>(arguments.grad_query, place), first,
                                      rows_in<general>(call, place), 0);
    const KeyRange upper = rows.keys(2 * r), lower = rows.keys(2 * r + 1);
    const int most = largest_of_warp(upper.end > lower.end ? upper.end : lower.end);
    const int fewest = -largest_of_warp(upper.end < lower.end ? -upper.end : -lower.end);
    if (lane_index() == 0 && first < rows_in<general>(call, place)) groups[first / group_rows].extent = {most, fewest};
    if constexpr (general) {
      const int leftmost = -largest_of_warp(-smallest_begin(upper, lower));
      const int rightmost = largest_of_warp(upper.begin > lower.begin ? upper.begin : lower.begin);
      if (lane_index() == 0 && first < rows_in<general>(call, place))
        groups[first / group_rows].left = {leftmost, rightmost};
    }
  }
}

}  // namespace

template <bool general>
std::string backward_over_queries(const BackwardParams& p, const BackwardArguments& arguments, void* stream) {
  return with_quickness(p, [&](auto instance, auto quick) {
    using I = decltype(instance);
    using S = Sizes<typename I::scalar, I::head_tile, general, quick()>;
    return launch("backward over queries", backward_query_kernel<typename I::scalar, I::head_tile, general, quick()>,
                  count_blocks(p, Of::rows, S::rows, 1), S::threads, S::shared_bytes, stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

// Forward: a block of threads takes up to 128 query rows of one stack, and walks once over the keys they see.
//
// Queries, sums and weights stay in registers. There is one tile of keys and one of values: while scores are made the
// values are on their way, and during the rest of the turn the next keys.
#pragma once

#include "dispatch.h"
#include "dropout.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"
#include "split.h"

namespace gma {
namespace cuda {
namespace {

// Of a block of threads. is_long: more rows than two warps of 16 take. drops: with dropout, whose generator wants
// registers of its own.
template <class scalar, int head_tile, bool general, bool is_long, bool drops>
struct Sizes {
  static constexpr bool is_wide = sizeof(scalar) == 4;
  static constexpr int row_tiles = is_long && !is_wide && head_tile <= (drops ? 64 : 128) ? 2 : 1;
  static constexpr int warps = is_long ? 4 : 2;
  static constexpr int warp_rows = row_tiles * fragment_rows, rows = warps * warp_rows, threads = warps * 32;
  static_assert(is_long || rows == few_rows);
  // as large as 255 registers a thread allow, and two blocks in 100 KB of shared memory where that can be
  static constexpr int keys = is_wide ? (head_tile <= 64 ? 32 : 16) : (head_tile <= 64 && !drops ? 64 : 32);
  // where a left bound and stacked heads want registers, what is known of the rows has none
  static constexpr bool holds_facts = !(general && is_long);
  static constexpr size_t shared_bytes =
      (rows + 2 * keys) * head_tile * sizeof(scalar) + (holds_facts ? 0 : rows * sizeof(RowFacts<general>));
  static constexpr bool holds_query = !is_wide && head_tile <= 64;
};

// What a block of threads has of its rows, for the kernel that joins the parts.
template <class scalar, int head_tile, bool general>
GMA_DEVICE void leave_part(const Split& split, const Call& call, const Place& place, const LaneRows<1, general>& rows,
                           const OnlineSoftmax<1>& softmax, const float (&context)[head_tile / 8][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = rows.index(i);
    if (row >= rows_in<general>(call, place)) continue;
    const int64_t part = (place.stack * rows_in<general>(call, place) + row) * split.count + place.part;
    const bool sees = rows.sees(i);
#pragma unroll
    for (int n = 0; n < head_tile / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        split.context[part * head_tile + 8 * n + lane_index() % 4 * 2 + e] = sees ? context[n][2 * i + e] : 0;
    if (lane_index() % 4 != 0) continue;
    split.maximum[part] = sees ? softmax.maximum[i] : -FLT_MAX;
    split.sum[part] = !sees ? 0 : is_sound(call, place, row) ? softmax.sum[i] : NAN;
  }
}

template <class scalar, int head_tile, bool general, bool is_long, bool drops>
__global__ void __launch_bounds__(Sizes<scalar, head_tile, general, is_long, drops>::threads, is_long ? 2 : 4)
    forward_kernel(ForwardArguments arguments) {
  using S = Sizes<scalar, head_tile, general, is_long, drops>;
  constexpr int step = S::keys, row_tiles = S::row_tiles;
  const Call& call = arguments.call;
  const Split& split = arguments.split;
  // where rows are few, each block takes another part of the source
  const Place place = find_place<general, Of::rows>(call, S::rows, is_long ? 1 : split.count);
  const int row_tile_count = (rows_in<general>(call, place) + S::rows - 1) / S::rows;
  if (general && place.tile >= row_tile_count) return;
  // the last rows of a sentence usually see most: they go first
  const int first_row = (row_tile_count - 1 - place.tile) * S::rows;
  const int warp_row = first_row + warp_index() * S::warp_rows, part = is_long ? 0 : place.part * split.keys;
  scalar* const keys = shared_memory<scalar>();
  scalar* const values = keys + step * head_tile;
  scalar* const query = values + step * head_tile;

  RowFacts<general>* const facts = reinterpret_cast<RowFacts<general>*>(query + S::rows * head_tile);
  const LaneRows<row_tiles, general, S::holds_facts> rows(call, place, warp_row, facts + warp_index() * S::warp_rows);
  const KeyRange seen = keys_of_rows<general>(call, place, first_row, S::rows);
  // a part of a source ends with a whole tile
  const int tiles_begin = general ? first_of_tiles<is_long ? 8 : step>(seen) : 0;
  const int begin = tiles_begin > part ? tiles_begin : part;
  const int end = is_long || part + split.keys > seen.end ? seen.end : part + split.keys;
  TileCopy<scalar, head_tile, step, S::threads> key_copy(keys_of<scalar>(arguments.key, place), begin);
  TileCopy<scalar, head_tile, step, S::threads> value_copy(keys_of<scalar>(arguments.value, place), begin);
  if (begin < end) {
    TileCopy<scalar, head_tile, S::rows, S::threads, general>(rows_of<scalar>(arguments.query, place), first_row)
        .load(query, rows_in<general>(call, place) - first_row);
    key_copy.load(keys, end - begin);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  using Shared = SharedRows<scalar, head_tile, row_tiles>;
  using Left = std::conditional_t<S::holds_query, ResidentRows<scalar, head_tile, row_tiles>, Shared>;
  const Left left(Shared{query + warp_index() * S::warp_rows * head_tile});

  float context[row_tiles][head_tile / 8][4];
  set_all(context, 0);
  OnlineSoftmax<row_tiles> softmax;
  [[maybe_unused]] const Dropout dropout = make_dropout(call, place);
  for (int first_key = begin; first_key < end; first_key += step) {
    wait_for_copies<0>();
    __syncthreads();
    value_copy.load(values, end - first_key, general ? seen.begin - first_key : 0);
    commit_copies();
    // warps whose rows see nothing of the tile only copy
    const bool works = rows.see(first_key, step);
    [[maybe_unused]] uint32_t kept[row_tiles] = {};
    float weights[row_tiles][step / 8][4];
    if (works) {
      if constexpr (drops)
        find_kept<step / 8>(
            kept, [&](int r, int n) { return kept_by_rows(dropout, warp_row + r * fragment_rows, first_key + 8 * n); });
      set_all(weights, 0);
      multiply_transposed<scalar, head_tile, step>(weights, left, keys);
    }
    wait_for_copies<0>();
    __syncthreads();
    if (first_key + step < end) key_copy.load(keys, end - first_key - step);
    commit_copies();
    if (!works) continue;
    const float no_shift[2 * row_tiles] = {};
    rows.to_logits(weights, call.prior, first_key, call.score_scale, no_shift);
    float factor[2 * row_tiles];
    softmax.add(weights, factor);
    if constexpr (drops) drop(weights, kept, 1.0f);
#pragma unroll
    for (int r = 0; r < row_tiles; ++r)
#pragma unroll
      for (int n = 0; n < head_tile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) context[r][n][i] *= factor[2 * r + i / 2];
    multiply_onto<scalar, head_tile, step, head_tile>(context, weights, values);
  }

  softmax.finish();
  if constexpr (!is_long)
    if (split.count > 1) return leave_part<scalar, head_tile, general>(split, call, place, rows, softmax, context[0]);
  const StackRows<scalar> output = rows_of<scalar>(arguments.context, place);
#pragma unroll
  for (int i = 0; i < 2 * row_tiles; ++i) {
    const int row = rows.index(i);
    const bool sees = rows.sees(i);
    const float sum = !sees ? 0 : is_sound(call, place, row) ? softmax.sum[i] : NAN;
    const float factor = inverse_sum(sum) * call.keep_scale;
#pragma unroll
    for (int n = 0; n < head_tile / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = context[i / 2][n][i % 2 * 2 + e];
        x = sees ? x * factor : 0;
      }
    if (lane_index() % 4 == 0 && row < rows_in<general>(call, place))
      *at_row(call.logsumexp, place, row) = log_of_sum(softmax.maximum[i], sum);
  }
#pragma unroll
  for (int r = 0; r < row_tiles; ++r)
    store_fragment<scalar, head_tile>(context[r], output, warp_row + r * fragment_rows, rows_in<general>(call, place),
                                      0);
}

}  // namespace

template <bool general>
std::string launch_forward(const ForwardParams& p, const Split& split, void* stream) {
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    return with_bool(!has_few_rows(p), [&](auto is_long) {
      return with_bool(p.drop_below > 0, [&](auto drops) {
        using S = Sizes<typename I::scalar, I::head_tile, general, is_long(), drops()>;
        return launch("forward", forward_kernel<typename I::scalar, I::head_tile, general, is_long(), drops()>,
                      count_blocks(p, Of::rows, S::rows, is_long() ? 1 : split.count), S::threads, S::shared_bytes,
                      stream, make_forward(p, split));
      });
    });
  });
}

}  // namespace cuda
}  // namespace gma

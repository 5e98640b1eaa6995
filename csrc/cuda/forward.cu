// Forward: a block of threads takes up to 128 query rows of one head, and walks once over the keys they see.
//
// Queries, sums and weights stay in registers. There is one tile of keys and one of values: while scores are made the
// values are on their way, and during the rest of the turn the next keys.

#include "decode.h"
#include "dispatch.h"
#include "dropout.h"
#include "product.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

// Of a block of threads. is_long: more rows than two warps of 16 take. drops: with dropout, whose generator wants
// registers of its own.
template <class scalar, int head_tile, bool is_long, bool drops>
struct Sizes {
  static constexpr bool is_wide = sizeof(scalar) == 4;
  static constexpr int row_tiles = is_long && !is_wide && head_tile <= (drops ? 64 : 128) ? 2 : 1;
  static constexpr int warps = is_long ? 4 : 2;
  static constexpr int warp_rows = row_tiles * fragment_rows, rows = warps * warp_rows, threads = warps * 32;
  // as large as 255 registers a thread allow, and two blocks in 100 KB of shared memory where that can be
  static constexpr int keys = is_wide ? (head_tile <= 64 ? 32 : 16) : (head_tile <= 64 && !drops ? 64 : 32);
  static constexpr size_t shared_bytes = (rows + 2 * keys) * head_tile * sizeof(scalar);
  static constexpr bool holds_query = !is_wide && head_tile <= 64;
};

// What a block of threads has of its rows, for the kernel that joins the parts.
template <class scalar, int head_tile>
GMA_DEVICE void leave_part(const Split& split, const Call& call, const Place& place, const LaneRows<1>& rows,
                           const OnlineSoftmax<1>& softmax, const float (&context)[head_tile / 8][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = rows.index(i);
    if (row >= call.rows) continue;
    const int64_t part = (place.flat_head * call.rows + row) * split.count + place.tile;
    const bool sees = rows.visible(i) > 0;
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

template <class scalar, int head_tile, bool is_long, bool drops>
__global__ void __launch_bounds__(Sizes<scalar, head_tile, is_long, drops>::threads, is_long ? 2 : 4)
    forward_kernel(ForwardArguments arguments) {
  using S = Sizes<scalar, head_tile, is_long, drops>;
  constexpr int step = S::keys, row_tiles = S::row_tiles;
  const Call& call = arguments.call;
  const Split& split = arguments.split;
  // few rows are all in one tile, of which each block takes another part of the source
  const int row_tile_count = is_long ? (call.rows + S::rows - 1) / S::rows : 1;
  const Place place = find_place(call, is_long ? row_tile_count : split.count);
  // the last rows of a sentence usually see most: they go first
  const int first_row = is_long ? (row_tile_count - 1 - place.tile) * S::rows : 0;
  const int warp_row = first_row + warp_index() * S::warp_rows, begin = is_long ? 0 : place.tile * split.keys;
  scalar* const keys = shared_memory<scalar>();
  scalar* const values = keys + step * head_tile;
  scalar* const query = values + step * head_tile;

  const LaneRows<row_tiles> rows(call, place, warp_row);
  const int seen = largest_visible(call, place, first_row, S::rows);
  const int end = is_long || begin + split.keys > seen ? seen : begin + split.keys;
  TileCopy<scalar, head_tile, step, S::threads> key_copy(rows_of<scalar>(arguments.key, place), begin);
  TileCopy<scalar, head_tile, step, S::threads> value_copy(rows_of<scalar>(arguments.value, place), begin);
  if (begin < end) {
    TileCopy<scalar, head_tile, S::rows, S::threads>(rows_of<scalar>(arguments.query, place), first_row)
        .load(query, call.rows - first_row);
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
    value_copy.load(values, end - first_key);
    commit_copies();
    // warps whose rows see nothing of the tile only copy
    const bool works = first_key < rows.largest;
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
    if (split.count > 1) return leave_part<scalar, head_tile>(split, call, place, rows, softmax, context[0]);
  const HeadRows<scalar> output = rows_of<scalar>(arguments.context, place);
#pragma unroll
  for (int i = 0; i < 2 * row_tiles; ++i) {
    const int row = rows.index(i);
    const bool sees = rows.visible(i) > 0;
    const float sum = !sees ? 0 : is_sound(call, place, row) ? softmax.sum[i] : NAN;
    const float factor = inverse_sum(sum) * call.keep_scale;
#pragma unroll
    for (int n = 0; n < head_tile / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = context[i / 2][n][i % 2 * 2 + e];
        x = sees ? x * factor : 0;
      }
    if (lane_index() % 4 == 0 && row < call.rows)
      *at_row(call.logsumexp, place, row) = log_of_sum(softmax.maximum[i], sum);
  }
#pragma unroll
  for (int r = 0; r < row_tiles; ++r)
    store_fragment<scalar, head_tile>(context[r], output, warp_row + r * fragment_rows, call.rows, 0);
}

}  // namespace

bool serves(ScalarType scalar_type, int64_t head_size, int64_t value_size) {
  const int64_t size = larger(head_size, value_size);
  return scalar_type != ScalarType::float64 && head_size >= 1 && value_size >= 1 && size <= GMA_LARGEST_HEAD_TILE;
}

size_t forward_workspace(const ForwardParams& p) { return split_workspace(p); }

std::string forward(const ForwardParams& p, void* workspace, void* stream) {
  const Split split = split_source(p, workspace);
  std::string error;
  if (p.rows == 1) error = decode(p, split, stream);
  else
    error = with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
      using I = decltype(instance);
      return with_bool(p.rows > Sizes<typename I::scalar, I::head_tile, false, false>::rows, [&](auto is_long) {
        return with_bool(p.drop_below > 0, [&](auto drops) {
          using S = Sizes<typename I::scalar, I::head_tile, is_long(), drops()>;
          const int64_t tiles = is_long() ? divide_up(p.rows, S::rows) : split.count;
          return launch("forward", forward_kernel<typename I::scalar, I::head_tile, is_long(), drops()>,
                        p.batches * p.heads * tiles, S::threads, S::shared_bytes, stream, make_forward(p, split));
        });
      });
    });
  return error.empty() ? join_parts(p, split, stream) : error;
}

}  // namespace cuda
}  // namespace gma

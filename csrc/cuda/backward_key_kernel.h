// Backward, over blocks of keys: gradients of keys and values. Everything is transposed: a lane's fragment has keys for
// rows and query rows for columns. Those are the rows of all heads that share the keys, whose gradients so add up in
// one fixed order.
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

// quick: see backward.h
template <class scalar, int head_tile, bool general, bool quick>
struct Sizes {
  static constexpr bool is_wide = sizeof(scalar) == 4;
  static constexpr int row_tiles = quick && head_tile <= 64 ? 2 : 1, warps = is_wide && head_tile > 128 ? 2 : 4;
  static constexpr int warp_keys = row_tiles * fragment_rows, keys = warps * warp_keys, threads = warps * 32;
  static constexpr int rows = head_tile <= (quick ? 128 : 64) ? 32 : 16, groups = rows / group_rows;
  // rows of a tile whose scores are in registers at the same time
  static constexpr int part = row_tiles == 2 ? group_rows : rows;
  static constexpr int stages = is_wide && head_tile > 128 ? 1 : 2;
  // as much of the columns of both gradients as one block of threads keeps in registers; others take the rest
  static constexpr int most_columns = is_wide ? 64 : 128, columns = head_tile < most_columns ? head_tile : most_columns;
  static constexpr int parts = head_tile / columns;
  static constexpr size_t shared_bytes =
      (2 * keys + 2 * stages * rows) * head_tile * sizeof(scalar) + stages * groups * sizeof(RowGroup<general>);
};

GMA_DEVICE Extent join(const Extent& a, const Extent& b) {
  return {a.any_end > b.any_end ? a.any_end : b.any_end, a.all_end < b.all_end ? a.all_end : b.all_end};
}
GMA_DEVICE LeftExtent join(const LeftExtent& a, const LeftExtent& b) {
  return {a.any_begin < b.any_begin ? a.any_begin : b.any_begin, a.all_begin > b.all_begin ? a.all_begin : b.all_begin};
}

// Tiles of query rows, of `groups` groups each.
template <int groups, bool general>
struct RowTiles {
  static constexpr int count = groups;
  const RowGroup<general>* of_stack;
  int rows, group_count;

  // Of a tile there is; rows past the last see nothing.
  __device__ __forceinline__ Extent extent(int tile) const {
    Extent found = of_stack[tile * groups].extent;
#pragma unroll
    for (int i = 1; i < groups; ++i)
      found = join(found, tile * groups + i < group_count ? of_stack[tile * groups + i].extent : Extent{0, 0});
    return found;
  }
  __device__ __forceinline__ LeftExtent left(int tile) const {
    LeftExtent found = of_stack[tile * groups].left;
#pragma unroll
    for (int i = 1; i < groups; ++i)
      found = join(found, tile * groups + i < group_count ? of_stack[tile * groups + i].left : LeftExtent{INT_MAX, 0});
    return found;
  }

  // The tiles begin .. end - 1 are from the first to the last in which a row sees some of these keys.
  __device__ __forceinline__ void bounds(const KeyRange& keys, int& begin, int& end) const {
    const int count = (group_count + groups - 1) / groups;
    const auto sees = [&](int tile) {
      if (tile < 0 || tile >= count || extent(tile).any_end <= keys.begin) return false;
      if constexpr (general) return left(tile).any_begin < keys.end;
      return true;
    };
    int found = 0;
    for (begin = 0; begin < count; begin += 32) {
      found = largest_of_warp(sees(begin + lane_index()) ? 32 - lane_index() : 0);
      if (found > 0) break;
    }
    begin += 32 - found;
    for (end = count; end > begin; end -= 32) {
      found = largest_of_warp(sees(end - 1 - lane_index()) ? 32 - lane_index() : 0);
      if (found > 0) break;
    }
    end -= 32 - found;
  }
};

template <int groups, bool general>
GMA_DEVICE RowTiles<groups, general> make_row_tiles(const BackwardArguments& arguments, const Call& call,
                                                    const Place& place) {
  const int rows = rows_in<general>(call, place);
  return {static_cast<const RowGroup<general>*>(arguments.groups) + place.first_group, rows,
          (rows + group_rows - 1) / group_rows};
}

// What a tile's fragments have for columns: rows 2t, 2t + 1 of every 8.
template <bool general>
struct LaneColumns {
  const RowGroup<general>* groups;

  __device__ __forceinline__ const RowGroup<general>& group(int n) const { return groups[n / 2]; }
  static __device__ __forceinline__ int at(int n, int e) { return n % 2 * 8 + lane_index() % 4 * 2 + e; }
  __device__ __forceinline__ Curve curve(int n, int e) const {
    return {group(n).peak[at(n, e)], group(n).a[at(n, e)], group(n).b[at(n, e)]};
  }
  __device__ __forceinline__ KeyRange keys(int n, int e) const {
    if constexpr (general) return {group(n).begin[at(n, e)], group(n).end[at(n, e)]};
    else return {0, group(n).end[at(n, e)]};
  }
};

// Scores, [keys, rows], become weights without dropout. hides: whether some row of the tile does not see all of the
// keys.
template <bool quick, bool general, int row_tiles, int tiles>
GMA_DEVICE void exponentiate(float (&weights)[row_tiles][tiles][4], const LaneColumns<general>& columns,
                             const Call& call, int warp_key, bool hides) {
  const int first_key = warp_key + lane_index() / 4;
  with_prior(call.prior, [&](auto kind) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Curve curve = columns.curve(n, e);
        const float shift = columns.group(n).shift[columns.at(n, e)];
        const float t = static_cast<float>(first_key + 1 - curve.peak);
#pragma unroll
        for (int r = 0; r < row_tiles; ++r)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float& x = weights[r][n][2 * h + e];
            x = exp2_fast(logit<decltype(kind)::value>(curve, x * call.score_scale + shift,
                                                       t + static_cast<float>(16 * r + 8 * h)));
          }
      }
  });
  if constexpr (!quick)
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < row_tiles; ++r) weights[r][n][i] *= columns.group(n).factor[columns.at(n, i % 2)];
  if (!hides) return;
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const KeyRange seen = columns.keys(n, e);
#pragma unroll
      for (int r = 0; r < row_tiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = first_key + 16 * r + 8 * h;
          if (key >= seen.end || (general && key < seen.begin)) weights[r][n][2 * h + e] = 0;
        }
    }
}

// Gradients of weights become gradients of logits, and lose what dropout makes of weights. kept: see dropout.h.
// has_single: whether a row's only key has a gradient, that of the logsumexp.
template <bool quick, bool general, int row_tiles, int tiles>
GMA_DEVICE void differentiate(float (&weights)[row_tiles][tiles][4], float (&grads)[row_tiles][tiles][4],
                              const LaneColumns<general>& columns, const Call& call, const uint32_t (&kept)[row_tiles],
                              int warp_key, bool hides, bool has_single) {
  const int first_key = warp_key + lane_index() / 4;
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float delta = columns.group(n).delta[columns.at(n, e)];
#pragma unroll
      for (int r = 0; r < row_tiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int i = 2 * h + e;
          float &weight = weights[r][n][i], &grad = grads[r][n][i];
          if constexpr (quick) {
            grad = weight * (grad - delta);
          } else {
            const bool keep = kept[r] >> (4 * n + i) & 1;
            grad = weight * ((keep ? grad * call.keep_scale : 0) - delta);
            weight = keep ? weight : 0;
          }
        }
    }
  if (!hides) return;
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const KeyRange seen = columns.keys(n, e);
      // the weight of the only key a row sees is 1, whatever its logit
      const bool is_single = seen.end - seen.begin == 1 && !(general && has_single);
#pragma unroll
      for (int r = 0; r < row_tiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = first_key + 16 * r + 8 * h;
          if (key >= seen.end || (general && key < seen.begin) || is_single) grads[r][n][2 * h + e] = 0;
        }
    }
}

// The rows of a tile; one that sees nothing may hold anything.
template <class Tiles, class Copy, class scalar>
GMA_DEVICE void load_rows(const Tiles& stack, int tile, Copy& copy, scalar* to) {
  constexpr int step = Tiles::count * group_rows;
  if (stack.extent(tile).all_end > 0) return copy.load(to, step);
  copy.load_wanted(to, [&](int at) {
    const int row = tile * step + at;
    return row < stack.rows && stack.of_stack[row / group_rows].end[row % group_rows] > 0;
  });
}

// Groups past the last become zeros.
template <int threads, class Tiles, class Group>
GMA_DEVICE void load_groups(const Tiles& stack, int tile, Group* to) {
  constexpr int count = Tiles::count, chunks = count * static_cast<int>(sizeof(Group)) / 16;
  for (int chunk = made_anew(static_cast<int>(threadIdx.x)); chunk < chunks; chunk += threads) {
    const bool is_there = tile * count + chunk * count / chunks < stack.group_count;
    copy_async(reinterpret_cast<char*>(to) + chunk * 16,
               reinterpret_cast<const char*>(stack.of_stack + (is_there ? tile * count : 0)) + chunk * 16,
               is_there ? 16 : 0);
  }
}

// Whether some of `count` rows do not see all of a warp's keys.
template <bool general, int count>
GMA_DEVICE bool some_hide(const RowGroup<general>* groups, int warp_key, int warp_keys) {
  bool hide = false;
#pragma unroll
  for (int i = 0; i < count / group_rows; ++i) {
    hide |= groups[i].extent.all_end < warp_key + warp_keys;
    if constexpr (general) hide |= groups[i].left.all_begin > warp_key;
  }
  return hide;
}

template <class scalar, bool general, int row_tiles, int tiles>
GMA_DEVICE void store_key_gradients(float (&grad_key)[row_tiles][tiles][4], float (&grad_value)[row_tiles][tiles][4],
                                    const BackwardArguments& arguments, const Place& place, int warp_key,
                                    int first_column) {
  const Call& call = arguments.call;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        grad_key[r][n][i] *= call.scale;
        grad_value[r][n][i] *= call.keep_scale;
      }
    const int first = warp_key + r * fragment_rows;
    store_fragment<scalar, 8 * tiles>(grad_key[r], keys_of<scalar>(arguments.grad_key, place), first,
                                      keys_in<general>(call, place), first_column);
    store_fragment<scalar, 8 * tiles>(grad_value[r], keys_of<scalar>(arguments.grad_value, place), first,
                                      keys_in<general>(call, place), first_column);
  }
}

template <class scalar, int head_tile, bool general, bool quick>
__global__ void __launch_bounds__(Sizes<scalar, head_tile, general, quick>::threads,
                                  Sizes<scalar, head_tile, general, quick>::shared_bytes > most_shared_bytes / 2 ? 1
                                                                                                                 : 2)
    backward_key_kernel(BackwardArguments arguments) {
  using S = Sizes<scalar, head_tile, general, quick>;
  using Group = RowGroup<general>;
  constexpr int step = S::rows, tile_elements = step * head_tile, row_tiles = S::row_tiles, columns = S::columns;
  const Call& call = arguments.call;
  const Place place = find_place<general, Of::keys>(call, S::keys, S::parts);
  const int first_key = place.tile * S::keys, warp_key = first_key + warp_index() * S::warp_keys;
  if (general && first_key >= place.keys) return;
  const int first_column = place.part * columns;
  scalar* const queries = shared_memory<scalar>();
  scalar* const grad_contexts = queries + S::stages * tile_elements;
  scalar* const key = grad_contexts + S::stages * tile_elements;
  scalar* const value = key + S::keys * head_tile;
  Group* const tile_groups = reinterpret_cast<Group*>(value + S::keys * head_tile);
  const int warp_offset = warp_index() * S::warp_keys * head_tile;

  const RowTiles<S::groups, general> stack = make_row_tiles<S::groups, general>(arguments, call, place);
  int begin, end;
  stack.bounds({first_key, first_key + S::keys}, begin, end);
  using RowCopy = TileCopy<scalar, head_tile, step, S::threads, general>;
  RowCopy query_copy(rows_of<scalar>(arguments.query, place), begin * step);
  RowCopy grad_copy(rows_of<scalar>(arguments.grad_context, place), begin * step);
  const auto load_tile = [&](int tile, int stage) {
    load_rows(stack, tile, query_copy, queries + stage * tile_elements);
    load_rows(stack, tile, grad_copy, grad_contexts + stage * tile_elements);
    load_groups<S::threads>(stack, tile, tile_groups + stage * S::groups);
  };

  float grad_key[row_tiles][columns / 8][4], grad_value[row_tiles][columns / 8][4];
  set_all(grad_key, 0);
  set_all(grad_value, 0);
  [[maybe_unused]] const Dropout dropout = make_dropout(call, place);
  if (begin < end) {
    using KeyCopy = TileCopy<scalar, head_tile, S::keys, S::threads>;
    KeyCopy(keys_of<scalar>(arguments.key, place), first_key).load(key, keys_in<general>(call, place) - first_key);
    KeyCopy(keys_of<scalar>(arguments.value, place), first_key).load(value, keys_in<general>(call, place) - first_key);
    load_tile(begin, 0);
  }
  commit_copies();
  const SharedRows<scalar, head_tile, row_tiles> left_key{key + warp_offset}, left_value{value + warp_offset};
  for (int tile = begin; tile < end; ++tile) {
    const int stage = S::stages == 2 ? (tile - begin) % 2 : 0;
    if (S::stages == 2 && tile + 1 < end) load_tile(tile + 1, stage ^ 1);
    if (S::stages == 2) commit_copies();
    wait_for_copies<S::stages - 1>();
    __syncthreads();
#pragma unroll
    for (int first = 0; first < step; first += S::part) {
      const Group* const groups = tile_groups + stage * S::groups + first / group_rows;
      // groups past the last are zeros
      Extent extent = groups[0].extent;
#pragma unroll
      for (int i = 1; i < S::part / group_rows; ++i) extent = join(extent, groups[i].extent);
      if (extent.any_end <= warp_key) continue;
      if constexpr (general) {
        LeftExtent left = groups[0].left;
#pragma unroll
        for (int i = 1; i < S::part / group_rows; ++i) left = join(left, groups[i].left);
        if (left.any_begin >= warp_key + S::warp_keys) continue;
      }
      [[maybe_unused]] uint32_t kept[row_tiles] = {};
      if constexpr (!quick)
        find_kept<S::part / 8>(kept, [&](int r, int n) {
          return dropout.on ? kept_by_keys(dropout, warp_key + r * fragment_rows, tile * step + first + 8 * n) : 15;
        });
      const scalar* const query = queries + stage * tile_elements + first * head_tile;
      const scalar* const grad_context = grad_contexts + stage * tile_elements + first * head_tile;
      float weights[row_tiles][S::part / 8][4], grads[row_tiles][S::part / 8][4];
      set_all(weights, 0);
      multiply_transposed<scalar, head_tile, S::part>(weights, left_key, query);
      set_all(grads, 0);
      multiply_transposed<scalar, head_tile, S::part>(grads, left_value, grad_context);
      const LaneColumns<general> row_columns{groups};
      const bool hides = some_hide<general, S::part>(groups, warp_key, S::warp_keys);
      exponentiate<quick>(weights, row_columns, call, warp_key, hides);
      differentiate<quick>(weights, grads, row_columns, call, kept, warp_key, hides,
                           arguments.grad_logsumexp.data != nullptr);
      multiply_onto<scalar, head_tile, S::part, columns>(grad_value, weights, grad_context, first_column);
      multiply_onto<scalar, head_tile, S::part, columns>(grad_key, grads, query, first_column);
    }
    __syncthreads();
    if (S::stages == 1 && tile + 1 < end) {
      load_tile(tile + 1, 0);
      commit_copies();
    }
  }

  store_key_gradients<scalar, general>(grad_key, grad_value, arguments, place, warp_key, first_column);
}

}  // namespace
}  // namespace cuda
}  // namespace gma

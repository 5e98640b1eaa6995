// Tiles of rows in shared memory: their sizes, and how they get there.
//
// A block of threads keeps 16 rows for each of its warps, and walks over tiles of the other side (keys for query rows,
// query rows for keys), the next of which is on its way while one is worked on.
#pragma once

#include "arguments.h"
#include "async_copy.h"
#include "scalar.h"

namespace gma {
namespace cuda {

constexpr int warp_rows = 16;

template <class scalar, int head_tile>
struct Tile {
  static constexpr bool is_wide = sizeof(scalar) == 4;
  static constexpr int chunk = 16 / sizeof(scalar);
  // a chunk more than the row: neighbouring rows then lie in different banks
  static constexpr int stride = head_tile + chunk;
  // as large as 255 registers a thread and 99 KB of shared memory a block allow
  static constexpr int forward_step = is_wide ? (head_tile <= 64 ? 32 : 16) : (head_tile <= 128 ? 64 : 32);
  static constexpr int backward_step = head_tile <= (is_wide ? 64 : 128) ? 32 : 16;
  static constexpr int most_warps = head_tile <= (is_wide ? 64 : 128) ? 4 : is_wide && head_tile == 256 ? 1 : 2;
};

// with two blocks on a multiprocessor a thread may have all 255 registers, and needs them
constexpr int most_threads = 128, resident_blocks = 2;

GMA_DEVICE int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
GMA_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
GMA_DEVICE int block_rows() { return static_cast<int>(blockDim.x) / 32 * warp_rows; }

// Rows first .. first + count of a head. Rows that are not wanted(row), and columns past the last, become 0 and are
// not read. Complete after wait_for_copies and a barrier.
template <class scalar, int head_tile, class Wanted>
GMA_DEVICE void load_rows(scalar* to, const HeadRows<scalar>& from, int64_t first, int count, const Wanted& wanted) {
  using T = Tile<scalar, head_tile>;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  if (from.aligned) {
    constexpr int chunks = head_tile / T::chunk;
    for (int i = thread; i < count * chunks; i += threads) {
      const int row = i / chunks, column = i % chunks * T::chunk, rest = from.columns - column;
      const int elements = rest <= 0 || !wanted(row) ? 0 : rest < T::chunk ? rest : T::chunk;
      const scalar* source = elements > 0 ? from[first + row] + column : from.data;
      copy_async(to + row * T::stride + column, source, elements * static_cast<int>(sizeof(scalar)));
    }
    return;
  }
  for (int i = thread; i < count * head_tile; i += threads) {
    const int row = i / head_tile, column = i % head_tile;
    to[row * T::stride + column] = column < from.columns && wanted(row) ? from[first + row][column] : scalar{};
  }
}

// A lane's part of a 16-row fragment (see mma.h) to rows first + g and first + g + 8, of those below `end`.
template <class scalar, int columns>
GMA_DEVICE void store_fragment(const float (&x)[columns / 8][4], const float (&factor)[2],
                               const HeadRows<scalar>& to, int64_t first, int64_t end, int first_column) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first + g + 8 * r;
    if (row >= end) continue;
    scalar* target = to[row];
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      const int column = first_column + 8 * n + 2 * t;
      const float low = x[n][2 * r] * factor[r], high = x[n][2 * r + 1] * factor[r];
      if constexpr (sizeof(scalar) == 2) {
        if (to.aligned && column + 1 < to.columns) {
          *reinterpret_cast<uint32_t*>(target + column) = pack<scalar>(low, high);
          continue;
        }
      }
      if (column < to.columns) round_to(target[column], low);
      if (column + 1 < to.columns) round_to(target[column + 1], high);
    }
  }
}

}  // namespace cuda
}  // namespace gma

// Products of a warp's rows, `row_tiles` times 16, with a tile in shared memory. All take and leave the layout of
// mma.h: a lane holds rows g, g + 8 of every 16 and columns 2t, 2t + 1 of every 8. 16-bit elements go through tensor
// cores, float32 through FMA.
#pragma once

#include "mma.h"
#include "tile.h"

namespace gma {
namespace cuda {

// read and written as one
struct alignas(16) FourFloats {
  float x[4];
};
struct alignas(8) TwoFloats {
  float x[2];
};

template <int row_tiles, int columns>
GMA_DEVICE void set_all(float (&x)[row_tiles][columns][4], float value) {
#pragma unroll
  for (int r = 0; r < row_tiles; ++r)
#pragma unroll
    for (int n = 0; n < columns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[r][n][i] = value;
}

// Where a lane begins to read: rows l % 16, chunk l / 16 for left operands and for transposed right ones; rows of
// l % 8 + l / 16 * 8, chunk l / 8 % 2 for right ones. Other columns, in steps of 16, are reached by an exclusive or.
template <class scalar, int head_tile>
GMA_DEVICE int left_offset() {
  return Tile<scalar, head_tile>::offset(lane_index() % 16, lane_index() / 16 * 8);
}
template <class scalar, int head_tile>
GMA_DEVICE int right_offset() {
  return Tile<scalar, head_tile>::offset(lane_index() % 8 + lane_index() / 16 * 8, lane_index() / 8 % 2 * 8);
}

// Left operands of a warp in shared memory, read for every product.
template <class scalar, int head_tile, int row_tiles>
struct SharedRows {
  const scalar* rows;
  int first = 0;  // its elements before the warp's; so tiles at constant addresses share what is added to them

  __device__ __forceinline__ void get(uint32_t (&a)[4], int tile, int k) const {
    load_matrices(a, rows + tile * fragment_rows * head_tile + ((left_offset<scalar, head_tile>() + first) ^ k));
  }
};

// The same, read once.
template <class scalar, int head_tile, int row_tiles>
struct ResidentRows {
  uint32_t fragments[row_tiles][head_tile / 16][4];

  __device__ __forceinline__ explicit ResidentRows(const SharedRows<scalar, head_tile, row_tiles>& shared) {
#pragma unroll
    for (int r = 0; r < row_tiles; ++r)
#pragma unroll
      for (int k = 0; k < head_tile; k += 16) shared.get(fragments[r][k / 16], r, k);
  }

  __device__ __forceinline__ void get(uint32_t (&a)[4], int tile, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = fragments[tile][k / 16][i];
  }
};

// product += left right^T; left: row_tiles times [16, head_tile], right: [columns, head_tile] in shared memory, after
// `first` elements, none of them in float32
template <class scalar, int head_tile, int columns, int row_tiles, class Left>
GMA_DEVICE void multiply_transposed(float (&product)[row_tiles][columns / 8][4], const Left& left, const scalar* right,
                                    int first = 0) {
  if constexpr (sizeof(scalar) == 2) {
    const int offset = right_offset<scalar, head_tile>() + first;
#pragma unroll
    for (int k = 0; k < head_tile; k += 16) {
      uint32_t a[row_tiles][4];
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) left.get(a[r], r, k);
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        uint32_t b[4];
        load_matrices(b, right + n * head_tile + (offset ^ k));
#pragma unroll
        for (int r = 0; r < row_tiles; ++r) {
          multiply_add<scalar>(product[r][n / 8], a[r], b[0], b[1]);
          multiply_add<scalar>(product[r][n / 8 + 1], a[r], b[2], b[3]);
        }
      }
    }
  } else {
    using T = Tile<scalar, head_tile>;
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll 1
    for (int k = 0; k < head_tile; k += 4)
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) {
        const scalar* rows = left.rows + r * fragment_rows * head_tile;
        const FourFloats upper = *reinterpret_cast<const FourFloats*>(rows + T::offset(g, k));
        const FourFloats lower = *reinterpret_cast<const FourFloats*>(rows + T::offset(g + 8, k));
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const FourFloats other = *reinterpret_cast<const FourFloats*>(right + T::offset(8 * n + 2 * t + e, k));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              product[r][n][e] += upper.x[i] * other.x[i];
              product[r][n][2 + e] += lower.x[i] * other.x[i];
            }
          }
      }
  }
}

// sum += left right of 16-bit elements; left: row_tiles times [16, depth], right: as below
template <class scalar, int head_tile, int depth, int columns, int row_tiles, class Left>
GMA_DEVICE void multiply_left_onto(float (&sum)[row_tiles][columns / 8][4], const Left& left, const scalar* right,
                                   int first_column) {
  const int offset = left_offset<scalar, head_tile>() ^ first_column;
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    uint32_t a[row_tiles][4];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) left.get(a[r], r, k);
#pragma unroll
    for (int n = 0; n < columns; n += 16) {
      uint32_t b[4];
      load_matrices_transposed(b, right + k * head_tile + (offset ^ n));
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) {
        multiply_add<scalar>(sum[r][n / 8], a[r], b[0], b[1]);
        multiply_add<scalar>(sum[r][n / 8 + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// Left operands in registers, rounded to scalar when they are read.
template <class scalar, int depth, int row_tiles>
struct RoundedRows {
  const float (&x)[row_tiles][depth / 8][4];

  __device__ __forceinline__ void get(uint32_t (&a)[4], int tile, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = pack<scalar>(x[tile][k / 8 + i / 2][i % 2 * 2], x[tile][k / 8 + i / 2][i % 2 * 2 + 1]);
  }
};

// sum += left right; left: row_tiles times [16, depth] in registers, rounded to scalar; right: columns first_column ..
// first_column + columns of [depth, head_tile] in shared memory
template <class scalar, int head_tile, int depth, int columns, int row_tiles>
GMA_DEVICE void multiply_onto(float (&sum)[row_tiles][columns / 8][4], const float (&left)[row_tiles][depth / 8][4],
                              const scalar* right, int first_column = 0) {
  if constexpr (sizeof(scalar) == 2) {
    multiply_left_onto<scalar, head_tile, depth, columns>(sum, RoundedRows<scalar, depth, row_tiles>{left}, right,
                                                          first_column);
  } else {
    const int lane = lane_index(), t = lane % 4;
    // what is left of Tile::offset where rows are constants: columns 2t, 2t + 1 of an even row and of an odd one
    const int lane_column[2] = {t / 2 * 4 + t % 2 * 2, (t / 2 ^ 1) * 4 + t % 2 * 2};
#pragma unroll
    for (int r = 0; r < row_tiles; ++r)
#pragma unroll
      for (int k = 0; k < depth / 8; ++k)
#pragma unroll
        for (int owner = 0; owner < 4; ++owner)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float upper = __shfl_sync(whole_warp, left[r][k][e], lane / 4 * 4 + owner);
            const float lower = __shfl_sync(whole_warp, left[r][k][2 + e], lane / 4 * 4 + owner);
            const scalar* row = right + (8 * k + 2 * owner + e) * head_tile + lane_column[e];
#pragma unroll
            for (int n = 0; n < columns / 8; ++n) {
              const TwoFloats other = *reinterpret_cast<const TwoFloats*>(row + ((first_column + 8 * n) ^ 8 * owner));
              sum[r][n][0] += upper * other.x[0];
              sum[r][n][1] += upper * other.x[1];
              sum[r][n][2] += lower * other.x[0];
              sum[r][n][3] += lower * other.x[1];
            }
          }
  }
}

}  // namespace cuda
}  // namespace gma

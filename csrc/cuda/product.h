// Products of a warp's 16 rows with a tile in shared memory. Both leave and take the layout of mma.h: a lane holds
// rows g, g + 8 and columns 2t, 2t + 1 of every 8. 16-bit elements go through tensor cores, float32 through FMA.
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

template <int columns>
GMA_DEVICE void set_zero(float (&x)[columns][4]) {
#pragma unroll
  for (int n = 0; n < columns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = 0;
}

// product = left right^T; left: [16, head_tile], right: [columns, head_tile], both in shared memory
template <class scalar, int head_tile, int columns>
GMA_DEVICE void multiply_transposed(float (&product)[columns / 8][4], const scalar* left, const scalar* right) {
  constexpr int stride = Tile<scalar, head_tile>::stride;
  const int lane = lane_index();
  set_zero(product);
  if constexpr (sizeof(scalar) == 2) {
#pragma unroll
    for (int k = 0; k < head_tile; k += 16) {
      uint32_t a[4];
      load_matrices(a, left + lane % 16 * stride + k + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        uint32_t b[4];
        load_matrices(b, right + (n + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8);
        multiply_add<scalar>(product[n / 8], a, b[0], b[1]);
        multiply_add<scalar>(product[n / 8 + 1], a, b[2], b[3]);
      }
    }
  } else {
    const int g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int k = 0; k < head_tile; k += 4) {
      const FourFloats upper = *reinterpret_cast<const FourFloats*>(left + g * stride + k);
      const FourFloats lower = *reinterpret_cast<const FourFloats*>(left + (g + 8) * stride + k);
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const FourFloats other = *reinterpret_cast<const FourFloats*>(right + (8 * n + 2 * t + e) * stride + k);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            product[n][e] += upper.x[i] * other.x[i];
            product[n][2 + e] += lower.x[i] * other.x[i];
          }
        }
    }
  }
}

// sum += left right; left: [16, depth] in registers, rounded to scalar; right: [depth, columns] in shared memory
template <class scalar, int head_tile, int depth, int columns>
GMA_DEVICE void multiply_onto(float (&sum)[columns / 8][4], const float (&left)[depth / 8][4], const scalar* right) {
  constexpr int stride = Tile<scalar, head_tile>::stride;
  const int lane = lane_index();
  if constexpr (sizeof(scalar) == 2) {
#pragma unroll
    for (int k = 0; k < depth / 8; k += 2) {
      const uint32_t a[4] = {pack<scalar>(left[k][0], left[k][1]), pack<scalar>(left[k][2], left[k][3]),
                             pack<scalar>(left[k + 1][0], left[k + 1][1]),
                             pack<scalar>(left[k + 1][2], left[k + 1][3])};
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        uint32_t b[4];
        load_matrices_transposed(b, right + (8 * k + lane % 16) * stride + n + lane / 16 * 8);
        multiply_add<scalar>(sum[n / 8], a, b[0], b[1]);
        multiply_add<scalar>(sum[n / 8 + 1], a, b[2], b[3]);
      }
    }
  } else {
    const int t = lane % 4;
#pragma unroll
    for (int k = 0; k < depth / 8; ++k)
#pragma unroll
      for (int owner = 0; owner < 4; ++owner)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float upper = __shfl_sync(whole_warp, left[k][e], lane / 4 * 4 + owner);
          const float lower = __shfl_sync(whole_warp, left[k][2 + e], lane / 4 * 4 + owner);
          const scalar* row = right + (8 * k + 2 * owner + e) * stride + 2 * t;
#pragma unroll
          for (int n = 0; n < columns / 8; ++n) {
            const TwoFloats other = *reinterpret_cast<const TwoFloats*>(row + 8 * n);
            sum[n][0] += upper * other.x[0];
            sum[n][1] += upper * other.x[1];
            sum[n][2] += lower * other.x[0];
            sum[n][3] += lower * other.x[1];
          }
        }
  }
}

}  // namespace cuda
}  // namespace gma

// Softmax of rows that arrive in tiles, with exponentials of base 2:
//
//   m' = max(m, max_j x_j)     sum <- sum 2^(m - m') + sum_j 2^(x_j - m')
#pragma once

#include <cfloat>

#include "math.h"

namespace gma {
namespace cuda {

// Of a row a lane holds in the layout of mma.h; the four lanes of a row agree on its value.
GMA_DEVICE float sum_of_row(float x) {
  x += __shfl_xor_sync(whole_warp, x, 1);
  return x + __shfl_xor_sync(whole_warp, x, 2);
}

GMA_DEVICE float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(whole_warp, x, 1));
  return fmaxf(x, __shfl_xor_sync(whole_warp, x, 2));
}

// Of the rows a lane holds, two of every 16.
template <int row_tiles>
struct OnlineSoftmax {
  float maximum[2 * row_tiles], sum[2 * row_tiles];  // the sum of this lane's columns

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < 2 * row_tiles; ++i) {
      // finite, so that nothing visible yet is no special case
      maximum[i] = -FLT_MAX;
      sum[i] = 0;
    }
  }

  // Turns logits into exponentials; factor is what everything summed up so far has to be multiplied with.
  template <int tiles>
  __device__ __forceinline__ void add(float (&x)[row_tiles][tiles][4], float (&factor)[2 * row_tiles]) {
#pragma unroll
    for (int i = 0; i < 2 * row_tiles; ++i) {
      float (&tile)[tiles][4] = x[i / 2];
      const int h = i % 2 * 2;
      float largest = maximum[i];
#pragma unroll
      for (int n = 0; n < tiles; ++n) largest = fmaxf(largest, fmaxf(tile[n][h], tile[n][h + 1]));
      largest = largest_of_row(largest);
      factor[i] = exp2_fast(maximum[i] - largest);
      maximum[i] = largest;
      sum[i] *= factor[i];
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          tile[n][h + e] = exp2_fast(tile[n][h + e] - largest);
          sum[i] += tile[n][h + e];
        }
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 2 * row_tiles; ++i) sum[i] = sum_of_row(sum[i]);
  }
};

// 1 / sum; 0 for a row that saw nothing
GMA_DEVICE float inverse_sum(float sum) { return sum == 0 ? 0 : 1 / sum; }

// The natural logarithm; -infinity for a row that saw nothing.
GMA_DEVICE float log_of_sum(float maximum, float sum) {
  return sum == 0 ? -INFINITY : (maximum + log2f(sum)) * static_cast<float>(ln_2);
}

}  // namespace cuda
}  // namespace gma

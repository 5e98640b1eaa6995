// Softmax of rows that arrive in tiles, with exponentials of base 2:
//
//   m' = max(m, max_j x_j)     sum <- sum 2^(m - m') + sum_j 2^(x_j - m')
#pragma once

#include <cfloat>

#include "arguments.h"

namespace gma {
namespace cuda {

// Of the two rows a lane holds in the layout of mma.h; the four lanes of a row agree on its value.
GMA_DEVICE float sum_of_row(float x) {
  x += __shfl_xor_sync(whole_warp, x, 1);
  return x + __shfl_xor_sync(whole_warp, x, 2);
}

GMA_DEVICE float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(whole_warp, x, 1));
  return fmaxf(x, __shfl_xor_sync(whole_warp, x, 2));
}

struct OnlineSoftmax {
  // finite, so that nothing visible yet is no special case
  float maximum[2] = {-FLT_MAX, -FLT_MAX};
  float sum[2] = {0, 0};  // of this lane's columns

  // Turns logits into exponentials; factor is what everything summed up so far has to be multiplied with.
  template <int tiles>
  __device__ __forceinline__ void add(float (&x)[tiles][4], float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = maximum[r];
#pragma unroll
      for (int n = 0; n < tiles; ++n) largest = fmaxf(largest, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      largest = largest_of_row(largest);
      factor[r] = exp2f(maximum[r] - largest);
      maximum[r] = largest;
      sum[r] *= factor[r];
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          x[n][2 * r + e] = exp2f(x[n][2 * r + e] - largest);
          sum[r] += x[n][2 * r + e];
        }
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = sum_of_row(sum[r]);
  }
};

// 1 / sum; 0 for a row that saw nothing
GMA_DEVICE float inverse_sum(float sum) { return sum == 0 ? 0 : 1 / sum; }

// beta (dbeta - delta). The only weight of a row that sees one key is 1 whatever its logit, but for rounding.
GMA_DEVICE float grad_of_logit(int visible, float weight, float grad, float delta) {
  return visible == 1 ? 0 : weight * (grad - delta);
}

// The natural logarithm; -infinity for a row that saw nothing.
GMA_DEVICE float log_of_sum(float maximum, float sum) {
  return sum == 0 ? -INFINITY : (maximum + log2f(sum)) * static_cast<float>(ln_2);
}

}  // namespace cuda
}  // namespace gma

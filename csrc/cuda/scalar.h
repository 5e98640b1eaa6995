// float16 and bfloat16 as they lie in memory, and their conversion to and from float32.
#pragma once

#include "platform.h"

namespace gma {
namespace cuda {

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

GMA_DEVICE float to_float(float x) { return x; }

// The distance of 1 from the next larger number.
GMA_DEVICE float unit_of(float16) { return 0x1p-10f; }
GMA_DEVICE float unit_of(bfloat16) { return 0x1p-7f; }

GMA_DEVICE void round_to(float& to, float x) { to = x; }

}  // namespace cuda
}  // namespace gma

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gma {
namespace cuda {

GMA_DEVICE float to_float(float16 x) { return __half2float(__ushort_as_half(x.bits)); }
GMA_DEVICE float to_float(bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
GMA_DEVICE void round_to(float16& to, float x) { to.bits = __half_as_ushort(__float2half_rn(x)); }
GMA_DEVICE void round_to(bfloat16& to, float x) { to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// Two neighbours as one register, the first in the low half.
template <class scalar>
GMA_DEVICE uint32_t pack(float first, float second);
template <>
__device__ __forceinline__ uint32_t pack<float16>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t pack<bfloat16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace cuda
}  // namespace gma

#else
#include "emulated_scalar.h"
#endif

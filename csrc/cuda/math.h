// Exponentials and logarithms of base 2 as the hardware makes them: one instruction each, without care for denormals.
#pragma once

#include "platform.h"

namespace gma {
namespace cuda {

constexpr double log2_e = 1.44269504088896340736, ln_2 = 0.69314718055994530942;

#if defined(__CUDACC__)

// 2^x, 0 where that is below 2^-126
GMA_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

GMA_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

GMA_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

inline float exp2_fast(float x) { return x < -126 ? 0 : std::exp2(x); }
inline float log2_fast(float x) { return std::log2(x); }
inline float reciprocal_fast(float x) { return 1 / x; }

#endif

}  // namespace cuda
}  // namespace gma

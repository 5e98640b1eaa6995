// What the toolkit's cuda_fp16.h and cuda_bf16.h do on a GPU: conversions that round to even.
#pragma once

namespace gma {
namespace cuda {

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float to_float(bfloat16 x) { return float_of_bits(uint32_t(x.bits) << 16); }

inline float to_float(float16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;
}

inline void round_to(bfloat16& to, float x) {
  const uint32_t bits = bits_of_float(x);
  to.bits = x == x ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : uint16_t(0x7fff);
}

inline void round_to(float16& to, float x) {
  const uint32_t sign = bits_of_float(x) >> 16 & 0x8000;
  const float size = x < 0 ? -x : x;
  uint32_t bits;
  if (!(x == x)) bits = 0x7fff;
  else if (size >= 65520) bits = 0x7c00;
  // adding a power of two rounds to even at its last place
  else if (size < 0x1p-14f) bits = bits_of_float(size + 0.5f) - bits_of_float(0.5f);
  else bits = (bits_of_float(size) - (112u << 23) + 0xfff + (bits_of_float(size) >> 13 & 1)) >> 13;
  to.bits = uint16_t(sign | bits);
}

template <class scalar>
uint32_t pack(float first, float second) {
  scalar low, high;
  round_to(low, first);
  round_to(high, second);
  return uint32_t(low.bits) | uint32_t(high.bits) << 16;
}

}  // namespace cuda
}  // namespace gma

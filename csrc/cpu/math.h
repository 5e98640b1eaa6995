// Exponential and logarithm of vectors, within 2 units in the last place.
#pragma once

#include "simd.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

template <class T>
constexpr T lowest_finite = sizeof(T) == 4 ? T(-__FLT_MAX__) : T(-__DBL_MAX__);

template <class T>
struct MathConstants;

template <>
struct MathConstants<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr int32_t exponent_bias = 127;
  static constexpr float lowest = -60.0f;
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  // (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, highest power first
  static constexpr float exp_series[] = {1.39261836e-3f, 8.36317905e-3f, 4.16665546e-2f, 1.66665770e-1f, 0.5f};
  // (2 atanh(s) - 2 s) / s^3 in powers of s^2, highest first
  static constexpr float log_series[] = {0.233316145f, 0.285507786f, 0.400001222f, 0.666666666f};
};

template <>
struct MathConstants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr int64_t exponent_bias = 1023;
  static constexpr double lowest = -600.0;
  static constexpr double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double exp_series[] = {2.51003854955103191e-8, 2.76200884454097482e-7, 2.75572684599970648e-6,
                                          2.48015212959543751e-5, 1.98412698630536169e-4, 1.38888889172137169e-3,
                                          8.33333333333006183e-3, 4.16666666666241279e-2, 0.166666666666666675,
                                          0.500000000000000102};
  static constexpr double log_series[] = {0.118834523941078597, 0.116879629975421557, 0.133356458419493771,
                                          0.153845749664609068, 0.181818185957690647, 0.222222222198442311,
                                          0.285714285714354076, 0.399999999999999924, 0.666666666666666667};
};

template <class V, class T, int n>
GMA_INLINE V polynomial(V x, const T (&coefficients)[n]) {
  V y = V{} + coefficients[0];
#pragma GCC unroll 16
  for (int i = 1; i < n; ++i) y = y * x + coefficients[i];
  return y;
}

template <class T>
struct Math {
  using V = Vector<T>;
  using Constants = MathConstants<T>;

  // x <= 88 (709 in double). Below `lowest` the result is 0: such a term adds nothing to a softmax, and products with
  // it would soon be denormal, which is slow.
  static GMA_INLINE V exp(V x) {
    constexpr T log2_e = T(1.44269504088896340736);
    // adding this rounds to an integer and leaves it, plus the exponent's bias, in the lowest bits
    constexpr T shift = T(3ull << (Constants::mantissa_bits - 1)) + Constants::exponent_bias;
    const V bounded = x < Constants::lowest ? Constants::lowest + V{} : x;
    const V shifted = bounded * log2_e + shift;
    const V n = shifted - shift;
    const V r = (bounded - n * Constants::ln2_high) - n * Constants::ln2_low;
    const V power = bit_cast<V>(bit_cast<BitsVector<T>>(shifted) << Constants::mantissa_bits);
    const V y = (polynomial(r, Constants::exp_series) * (r * r) + r) * power + power;
    return x < Constants::lowest ? V{} : y;
  }

  // x a positive normal number
  static GMA_INLINE V log(V x) {
    using I = BitsVector<T>;
    constexpr T half_square_root = T(0.70710678118654752440);
    const I bits = bit_cast<I>(x);
    const I anchor = bit_cast<I>(broadcast<T>(half_square_root));
    // x = m 2^e with m in [sqrt(1/2), sqrt(2))
    const I exponent = (bits - anchor) >> Constants::mantissa_bits;
    const V m = bit_cast<V>(bits - (exponent << Constants::mantissa_bits));
    const V e = __builtin_convertvector(exponent, V);
    const V s = (m - 1) / (m + 1), square = s * s;
    const V tail = polynomial(square, Constants::log_series) * (square * s) + e * Constants::ln2_low;
    return (tail + 2 * s) + e * Constants::ln2_high;
  }
};

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

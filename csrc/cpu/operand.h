// What matrix products multiply: numbers in the type of the arithmetic or, where the CPU has products of them, pairs of
// bfloat16. Two neighbours along the depth of a product make a pair and take the place of one float, so that a product
// of pairs is one of half the depth.
#pragma once

#include "simd.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace gma {
namespace GMA_SIMD_LEVEL {

struct Pair {
  BFloat16 first, second;
};

#if defined(__AVX512BF16__)
constexpr bool multiplies_bfloat16 = true;
#else
constexpr bool multiplies_bfloat16 = false;
#endif

template <class E>
using Operand = std::conditional_t<multiplies_bfloat16 && std::is_same_v<E, BFloat16>, Pair, Arithmetic<E>>;

template <class O>
constexpr bool is_pair = std::is_same_v<O, Pair>;

// how many elements one operand holds
template <class O>
constexpr int64_t elements_per = is_pair<O> ? 2 : 1;

// The depth of a product whose sums have so many terms.
template <class O>
constexpr int64_t operands(int64_t terms) {
  return (terms + elements_per<O> - 1) / elements_per<O>;
}

// Pairs are the caller's own bits: a factor multiplies the product instead.
template <class O, class T>
constexpr T factor_of_operand(T factor) {
  return is_pair<O> ? T(1) : factor;
}
template <class O, class T>
constexpr T factor_of_product(T factor) {
  return is_pair<O> ? factor : T(1);
}

// vectors of pairs are moved about as floats, which no instruction for that changes
GMA_INLINE Vector<float> load(const Pair* from) { return load(reinterpret_cast<const float*>(from)); }
GMA_INLINE void store(Pair* to, Vector<float> x) { store(reinterpret_cast<float*>(to), x); }

template <class T>
GMA_INLINE Vector<T> add_product(Vector<T> sum, T left, Vector<T> right) {
  return sum + left * right;
}

#if defined(__AVX512BF16__)
GMA_INLINE Vector<float> add_product(Vector<float> sum, Pair left, Vector<float> right) {
  const __m512i both = _mm512_set1_epi32(bit_cast<int32_t>(left));
  return bit_cast<Vector<float>>(
      _mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(right), bit_cast<__m512bh>(both)));
}

// rounded to the nearest; denormals become 0
GMA_INLINE Words narrow_fast(Vector<float> x) { return bit_cast<Words>(_mm512_cvtneps_pbh(bit_cast<__m512>(x))); }
#else
GMA_INLINE Words narrow_fast(Vector<float> x) { return narrow(x, BFloat16()); }
#endif

// to[i] = {first[i], second[i]}
GMA_INLINE void store_pairs(Pair* to, Words first, Words second) {
  using Wide = Vector<uint32_t>;
  store(to,
        bit_cast<Vector<float>>(__builtin_convertvector(first, Wide) | (__builtin_convertvector(second, Wide) << 16)));
}

// A row of a left operand, in place: numbers become pairs of neighbours. `count` is rounded up to whole vectors.
template <class O, class T>
GMA_INLINE void make_operands(T* row, int64_t count) {
  if constexpr (is_pair<O>)
    for (int64_t c = 0; c < count; c += lanes<float>) {
      const Words words = narrow_fast(load(row + c));
      std::memcpy(reinterpret_cast<char*>(row) + 2 * c, &words, sizeof words);
    }
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

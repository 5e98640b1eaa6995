// SIMD vectors by the compiler's vector extensions, one width per instruction-set level.
//
// A level's unit defines GMA_SIMD_LEVEL (a namespace) and GMA_VECTOR_BYTES before including this.
// Everything here lives in that namespace, so that the linker never merges code of two levels.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace gma {
namespace GMA_SIMD_LEVEL {

#define GMA_INLINE inline __attribute__((always_inline))

template <class T, int bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
  typedef T unaligned __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
};

template <class T>
using Vector = typename VectorOf<T, GMA_VECTOR_BYTES>::type;

template <class T>
constexpr int lanes = GMA_VECTOR_BYTES / sizeof(T);

// a signed integer as wide as T, for bit patterns and comparisons
template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = int32_t;
};
template <>
struct Bits<double> {
  using type = int64_t;
};
template <class T>
using BitsVector = Vector<typename Bits<T>::type>;

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// the type an element is computed in
template <class E>
struct ArithmeticOf {
  using type = float;
};
template <>
struct ArithmeticOf<double> {
  using type = double;
};
template <class E>
using Arithmetic = typename ArithmeticOf<E>::type;

template <class To, class From>
GMA_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
GMA_INLINE Vector<T> broadcast(T x) {
  return x + Vector<T>{};
}

// 0, 1, 2, ...
template <class T, size_t... lane>
GMA_INLINE Vector<T> count_up(std::index_sequence<lane...>) {
  return Vector<T>{T(lane)...};
}
template <class T>
GMA_INLINE Vector<T> count_up() {
  return count_up<T>(std::make_index_sequence<lanes<T>>());
}

// -1 in the first n lanes, else 0
template <class T>
GMA_INLINE BitsVector<T> first_lanes(int64_t n) {
  using B = typename Bits<T>::type;
  return count_up<B>() < B(n);
}

// b where either is NaN
template <class V>
GMA_INLINE V maximum(V a, V b) {
  return a > b ? a : b;
}
template <class V>
GMA_INLINE V minimum(V a, V b) {
  return a < b ? a : b;
}

using Words = typename VectorOf<uint16_t, GMA_VECTOR_BYTES / 2>::type;

// float16 and bfloat16 by bit arithmetic: the same bits at every level
GMA_INLINE Vector<float> widen(Words words, Half) {
  const Vector<uint32_t> bits = __builtin_convertvector(words, Vector<uint32_t>);
  // moving the exponent by multiplication also normalises denormals
  const Vector<float> scaled = bit_cast<Vector<float>>((bits & 0x7fffu) << 13) * 0x1p112f;
  Vector<uint32_t> result = bit_cast<Vector<uint32_t>>(scaled);
  result = (bits & 0x7c00u) == 0x7c00u ? result | 0x7f800000u : result;
  return bit_cast<Vector<float>>(result | ((bits & 0x8000u) << 16));
}

GMA_INLINE Vector<float> widen(Words words, BFloat16) {
  return bit_cast<Vector<float>>(__builtin_convertvector(words, Vector<uint32_t>) << 16);
}

// round to nearest even
GMA_INLINE Words narrow(Vector<float> x, Half) {
  const Vector<uint32_t> bits = bit_cast<Vector<uint32_t>>(x);
  const Vector<uint32_t> magnitude = bits & 0x7fffffffu;
  const Vector<uint32_t> normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // below 2^-14 the rounding is left to a float addition with a unit of 2^-24
  const Vector<uint32_t> denormal = bit_cast<Vector<uint32_t>>(bit_cast<Vector<float>>(magnitude) + 0.5f) - 0x3f000000u;
  Vector<uint32_t> result = magnitude < 0x38800000u ? denormal : normal;
  result = magnitude >= 0x47800000u ? (0x7c00u + Vector<uint32_t>{}) : result;
  result = magnitude > 0x7f800000u ? (0x7e00u + Vector<uint32_t>{}) : result;
  return __builtin_convertvector(result | ((bits >> 16) & 0x8000u), Words);
}

GMA_INLINE Words narrow(Vector<float> x, BFloat16) {
  const Vector<uint32_t> bits = bit_cast<Vector<uint32_t>>(x);
  const Vector<uint32_t> rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Vector<uint32_t> quiet = (bits >> 16) | 0x40u;
  const Vector<uint32_t> result = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  return __builtin_convertvector(result, Words);
}

// elements in memory, in their own type; vectors in the type they are computed in
template <class E>
GMA_INLINE Vector<Arithmetic<E>> load(const E* from) {
  if constexpr (sizeof(E) == 2) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return widen(words, E{});
  } else {
    return *reinterpret_cast<const typename VectorOf<E, GMA_VECTOR_BYTES>::unaligned*>(from);
  }
}

template <class E>
GMA_INLINE void store(E* to, Vector<Arithmetic<E>> x) {
  if constexpr (sizeof(E) == 2) {
    const Words words = narrow(x, E{});
    std::memcpy(to, &words, sizeof words);
  } else {
    *reinterpret_cast<typename VectorOf<E, GMA_VECTOR_BYTES>::unaligned*>(to) = x;
  }
}

// only the first n < lanes elements are touched in memory; the other lanes are 0
template <class E>
GMA_INLINE Vector<Arithmetic<E>> load_first(const E* from, int64_t n) {
  E elements[lanes<Arithmetic<E>>] = {};
  for (int64_t i = 0; i < n; ++i) elements[i] = from[i];
  return load(elements);
}
template <class E>
GMA_INLINE void store_first(E* to, Vector<Arithmetic<E>> x, int64_t n) {
  E elements[lanes<Arithmetic<E>>];
  store(elements, x);
  for (int64_t i = 0; i < n; ++i) to[i] = elements[i];
}

// lanes alternate between a and b, from their lower (0) or upper (1) halves
template <class T, int upper, size_t... lane>
GMA_INLINE Vector<T> interleave(Vector<T> a, Vector<T> b, std::index_sequence<lane...>) {
  constexpr int n = lanes<T>;
#if defined(__clang__)
  return __builtin_shufflevector(a, b, int(lane / 2 + upper * (n / 2) + lane % 2 * n)...);
#else
  return __builtin_shuffle(a, b, BitsVector<T>{typename Bits<T>::type(lane / 2 + upper * (n / 2) + lane % 2 * n)...});
#endif
}
template <class T, int upper>
GMA_INLINE Vector<T> interleave(Vector<T> a, Vector<T> b) {
  return interleave<T, upper>(a, b, std::make_index_sequence<lanes<T>>());
}

// A square of lanes x lanes: log2(lanes) perfect shuffles of its rows transpose it.
template <class T>
GMA_INLINE void transpose(Vector<T> (&square)[lanes<T>]) {
  constexpr int n = lanes<T>;
  Vector<T> shuffled[n];
#pragma GCC unroll 4
  for (int round = 1; round < n; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      shuffled[2 * i] = interleave<T, 0>(square[i], square[i + n / 2]);
      shuffled[2 * i + 1] = interleave<T, 1>(square[i], square[i + n / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) square[i] = shuffled[i];
  }
}

// lane i of the result combines the lanes of rows[i]
template <class T, class Combine>
GMA_INLINE Vector<T> reduce_rows(Vector<T> (&rows)[lanes<T>], Combine combine) {
#pragma GCC unroll 4
  for (int half = lanes<T> / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i)
      rows[i] = combine(interleave<T, 0>(rows[i], rows[i + half]), interleave<T, 1>(rows[i], rows[i + half]));
  }
  return rows[0];
}

// x with its lanes rotated by `distance`
template <int distance, class T, size_t... lane>
GMA_INLINE Vector<T> rotate(Vector<T> x, std::index_sequence<lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, int((lane + distance) % lanes<T>)...);
#else
  return __builtin_shuffle(x, BitsVector<T>{typename Bits<T>::type((lane + distance) % lanes<T>)...});
#endif
}

template <class T, int distance = lanes<T> / 2, class Combine>
GMA_INLINE T combine_lanes(Vector<T> x, Combine combine) {
  if constexpr (distance == 0) return x[0];
  else
    return combine_lanes<T, distance / 2>(combine(x, rotate<distance, T>(x, std::make_index_sequence<lanes<T>>())),
                                          combine);
}

template <class T>
GMA_INLINE T sum_of_lanes(Vector<T> x) {
  return combine_lanes<T>(x, [](Vector<T> a, Vector<T> b) { return a + b; });
}

template <class T>
GMA_INLINE T max_of_lanes(Vector<T> x) {
  return combine_lanes<T>(x, [](Vector<T> a, Vector<T> b) { return maximum(a, b); });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

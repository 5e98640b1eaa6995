// The log-priors and their derivatives: the one definition, for scalars and SIMD vectors, host and device.
//
// Softmax ignores what is constant in j, so gaussian and laplace are taken relative to their value at
// the peak: the position j0 nearest the center of those that the row sees. With t = j - j0 and d = j0 - center the
// logarithm is 0 at the peak and never positive, however far the center or narrow the width.
#pragma once

#include <cstdint>

#include "gaussian_attention.h"

// internal linkage: units compiled for different instruction sets must not share a body
#if defined(__CUDACC__)
#define GMA_HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define GMA_HOST_DEVICE static inline __attribute__((always_inline))
#endif

namespace gma {

template <class T>
struct RowPrior {
  int32_t peak;  // j0, 1-based
  T offset;      // d
  T width, inverse_width;
  bool width_is_clamped;
};

// The gradient of the center is this factor times the sum over j of ds_ij * PriorTerms::center; so for the width.
template <class T>
struct PriorFactors {
  T center, width;
};

template <class V>
struct PriorTerms {
  V center, width;
};

constexpr double sqrt_two = 1.41421356237309504880;
constexpr double linear_floor = 1.0 / 1024;

template <class V>
GMA_HOST_DEVICE V absolute(V x) {
  return x < 0 ? -x : x;
}

// first < visible
template <class T>
GMA_HOST_DEVICE RowPrior<T> make_row_prior(T center, T width, int32_t visible, int32_t first = 0) {
  const T narrowest = T(1.0 / (1ull << 40));
  // no factor of the logarithm may overflow
  const T farthest = T(sizeof(T) == 4 ? 0x1p80 : 0x1p600);
  RowPrior<T> row;
  const T lowest = T(first + 1), last = T(visible);
  const T nearest = center >= lowest ? (center <= last ? center : last) : lowest;
  row.peak = nearest + T(0.5) >= last ? visible : int32_t(nearest + T(0.5));
  row.width_is_clamped = width < narrowest;
  row.width = row.width_is_clamped ? narrowest : width;
  row.inverse_width = 1 / row.width;
  const T limit = row.width * farthest;
  const T offset = T(row.peak) - center;
  row.offset = offset > limit ? limit : offset < -limit ? -limit : offset;
  return row;
}

// 1 - |t + d| / (2 width); the subtraction is exact where the height is small
template <class V, class T>
GMA_HOST_DEVICE V linear_height(const RowPrior<T>& row, V distance) {
  return (row.width - distance * T(0.5)) * row.inverse_width;
}

// t: distance of the positions from the peak. Math supplies log(V).
template <PriorKind kind, class Math, class V, class T>
GMA_HOST_DEVICE V log_prior(const RowPrior<T>& row, V t) {
  const T d = row.offset, a = row.inverse_width;
  if constexpr (kind == PriorKind::gaussian) {
    return (t * a) * ((t * T(-0.5) - d) * a);
  } else if constexpr (kind == PriorKind::laplace) {
    // |t + d| - |d| without cancellation
    const T sign = d < 0 ? T(-1) : T(1);
    const V outward = t * sign, inward = -outward - 2 * absolute(d);
    return (outward > inward ? outward : inward) * (T(-sqrt_two) * a);
  } else if constexpr (kind == PriorKind::linear) {
    const V height = linear_height(row, absolute(t + d));
    return Math::log(height > T(linear_floor) ? height : T(linear_floor) + V{});
  } else {
    return V{};
  }
}

// The part of the derivatives that depends on the position; terms constant in j are dropped. Not for PriorKind::none.
template <PriorKind kind, class Math, class V, class T>
GMA_HOST_DEVICE PriorTerms<V> prior_terms(const RowPrior<T>& row, V t) {
  const T d = row.offset;
  const V z = t + d;
  if constexpr (kind == PriorKind::linear) {
    const V distance = absolute(z), rest = row.width - distance * T(0.5);
    const V slope = linear_height(row, distance) > T(linear_floor) ? T(0.5) / rest : V{};
    return {z < 0 ? -slope : z > 0 ? slope : V{}, distance * slope};
  } else {
    // a weight of 0 must not meet an infinite logarithm; past what a row sees it may be a positive one
    const T lowest = T(-1e30);
    const V logarithm = log_prior<kind, Math>(row, t);
    const V bounded = logarithm < lowest ? lowest + V{} : logarithm;
    const V finite = bounded > 0 ? V{} : bounded;
    if constexpr (kind == PriorKind::gaussian) return {t, finite * T(-2)};
    const V one = T(1) + V{};
    return {(z < 0 ? -one : z > 0 ? one : V{}) - T(d < 0 ? -1 : d > 0 ? 1 : 0), -finite};
  }
}

template <PriorKind kind, class T>
GMA_HOST_DEVICE PriorFactors<T> prior_factors(const RowPrior<T>& row) {
  const T a = row.inverse_width, unless_clamped = row.width_is_clamped ? T(0) : T(1);
  if constexpr (kind == PriorKind::gaussian) return {a * a, a * unless_clamped};
  if constexpr (kind == PriorKind::laplace) return {T(sqrt_two) * a, a * unless_clamped};
  if constexpr (kind == PriorKind::linear) return {1, a * unless_clamped};
  return {0, 0};
}

}  // namespace gma

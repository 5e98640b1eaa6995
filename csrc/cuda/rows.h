// What a kernel knows about its query rows: how far they see, and their prior.
#pragma once

#include <type_traits>

#include "math.h"
#include "place.h"

namespace gma {
namespace cuda {

// The keys begin .. end - 1, counted from 0; {0, 0} where there are none.
struct KeyRange {
  int begin, end;
};

// Those that a row sees.
template <bool general>
GMA_DEVICE KeyRange keys_seen(const Call& call, const Place& place, int row) {
  if (row >= rows_in<general>(call, place)) return {0, 0};
  const int visible = *at_row(call.visible, place, row);
  const int end = visible < 0 ? 0 : visible < keys_in<general>(call, place) ? visible : keys_in<general>(call, place);
  if constexpr (general)
    if (call.first.data != nullptr) {
      const int first = *at_row(call.first, place, row), begin = first < 0 ? 0 : first;
      return begin < end ? KeyRange{begin, end} : KeyRange{0, 0};
    }
  return {0, end};
}

GMA_DEVICE bool is_finite(float x) { return x - x == 0; }

// Whether center and width are values a row may have; where they are not, NaN has to show in all that is the row's.
GMA_DEVICE bool is_sound(const Call& call, const Place& place, int row) {
  if (call.prior == PriorKind::none) return true;
  const float center = *at_row(call.center, place, row), width = *at_row(call.width, place, row);
  return is_finite(center) && is_finite(width) && width > 0;
}

// For rows that see something.
GMA_DEVICE RowPrior<float> load_prior(const Call& call, const Place& place, int row, const KeyRange& keys) {
  return make_row_prior(*at_row(call.center, place, row), *at_row(call.width, place, row), keys.end, keys.begin);
}

// A row's prior as coefficients of t, the distance of a key from the peak; logarithms of base 2. See prior.h.
//   gaussian  t (t a + b)     laplace  a (|t + b| - |b|)     linear  log2(1 - |t + b| / 2a)
struct Curve {
  int peak;
  float a, b;
};

GMA_DEVICE Curve make_curve(PriorKind kind, const RowPrior<float>& prior) {
  const float inverse = prior.inverse_width, scaled = inverse * static_cast<float>(log2_e);
  const int peak = prior.peak;
  if (kind == PriorKind::gaussian) return {peak, -0.5f * inverse * scaled, -(prior.offset * inverse) * scaled};
  if (kind == PriorKind::laplace) return {peak, static_cast<float>(-sqrt_two) * scaled, prior.offset};
  return {peak, prior.width, prior.offset};
}

// A row that sees nothing gets a prior that is never used.
GMA_DEVICE Curve load_curve(const Call& call, const Place& place, int row, const KeyRange& keys) {
  if (keys.end == 0 || call.prior == PriorKind::none) return {};
  return make_curve(call.prior, load_prior(call, place, row, keys));
}

// |t + b| - |b| without cancellation
GMA_DEVICE float excess_distance(const Curve& curve, float t) {
  const float outward = curve.b < 0 ? -t : t;
  return fmaxf(outward, -2 * fabsf(curve.b) - outward);
}

GMA_DEVICE float sign_of(float x) { return x < 0 ? -1.0f : x > 0 ? 1.0f : 0.0f; }

// The logit of a scaled score.
template <PriorKind kind>
GMA_DEVICE float logit(const Curve& curve, float score, float t) {
  if constexpr (kind == PriorKind::gaussian) return t * (t * curve.a + curve.b) + score;
  if constexpr (kind == PriorKind::laplace) return excess_distance(curve, t) * curve.a + score;
  if constexpr (kind == PriorKind::linear) {
    // the subtraction is exact where the height is small
    const float height = (curve.a - fabsf(t + curve.b) * 0.5f) * reciprocal_fast(curve.a);
    return log2_fast(fmaxf(height, static_cast<float>(linear_floor))) + score;
  }
  return score;
}

// Sums over j of ds_ij times what the derivatives of the log-prior need of position j.
struct PriorSums {
  float center = 0, width = 0;

  template <PriorKind kind>
  __device__ __forceinline__ void add(const Curve& curve, float grad, float t) {
    if constexpr (kind == PriorKind::gaussian) {
      const float first = grad * t;
      center += first;
      width += first * t;
    } else if constexpr (kind == PriorKind::laplace) {
      center += grad * (sign_of(t + curve.b) - sign_of(curve.b));
      width += grad * excess_distance(curve, t);
    } else if constexpr (kind == PriorKind::linear) {
      const float distance = fabsf(t + curve.b), rest = curve.a - distance * 0.5f;
      const bool falls = rest * reciprocal_fast(curve.a) > static_cast<float>(linear_floor);
      const float slope = falls ? grad * 0.5f * reciprocal_fast(rest) : 0;
      center += t + curve.b < 0 ? -slope : t + curve.b > 0 ? slope : 0;
      width += distance * slope;
    }
  }

  // The derivatives by center and by width themselves.
  __device__ __forceinline__ PriorFactors<float> finish(PriorKind kind, const Curve& curve,
                                                        const RowPrior<float>& prior) const {
    constexpr float ln2 = static_cast<float>(ln_2);
    const auto scaled = [&](PriorFactors<float> factors, float width_sum) {
      return PriorFactors<float>{factors.center * center, factors.width * width_sum};
    };
    switch (kind) {
      case PriorKind::gaussian:
        return scaled(prior_factors<PriorKind::gaussian>(prior), -2 * ln2 * (curve.a * width + curve.b * center));
      case PriorKind::laplace: return scaled(prior_factors<PriorKind::laplace>(prior), -ln2 * curve.a * width);
      case PriorKind::linear: return scaled(prior_factors<PriorKind::linear>(prior), width);
      case PriorKind::none: break;
    }
    return {0, 0};
  }
};

// Calls body(std::integral_constant<PriorKind, kind>); one branch for a whole tile.
template <class Body>
GMA_DEVICE void with_prior(PriorKind kind, const Body& body) {
  switch (kind) {
    case PriorKind::gaussian: return body(std::integral_constant<PriorKind, PriorKind::gaussian>());
    case PriorKind::laplace: return body(std::integral_constant<PriorKind, PriorKind::laplace>());
    case PriorKind::linear: return body(std::integral_constant<PriorKind, PriorKind::linear>());
    case PriorKind::none: return body(std::integral_constant<PriorKind, PriorKind::none>());
  }
}

GMA_DEVICE int largest_of_warp(int x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const int other = __shfl_xor_sync(whole_warp, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

// From the first to the last that some of `count` rows see, in every thread of a warp.
template <bool general>
GMA_DEVICE KeyRange keys_of_rows(const Call& call, const Place& place, int first, int count) {
  KeyRange all{keys_in<general>(call, place), 0};
  for (int row = static_cast<int>(threadIdx.x) % 32; row < count; row += 32) {
    const KeyRange keys = keys_seen<general>(call, place, first + row);
    all.end = keys.end > all.end ? keys.end : all.end;
    if constexpr (general) all.begin = keys.end > 0 && keys.begin < all.begin ? keys.begin : all.begin;
  }
  return {general ? -largest_of_warp(-all.begin) : 0, largest_of_warp(all.end)};
}

// With which key tiles begin: a multiple of `size`, itself one of 8, because dropout decides for four neighbours at
// once and a fragment has eight.
template <int size = 8>
GMA_DEVICE int first_of_tiles(const KeyRange& keys) {
  return keys.begin / size * size;
}

template <bool general>
struct alignas(16) RowFacts {
  int end;
  Curve curve;
  static __device__ __forceinline__ RowFacts make(const KeyRange& keys, const Curve& curve) {
    return {keys.end, curve};
  }
  __device__ __forceinline__ KeyRange keys() const { return {0, end}; }
};
template <>
struct alignas(16) RowFacts<true> {
  int end;
  Curve curve;
  int begin;
  static __device__ __forceinline__ RowFacts make(const KeyRange& keys, const Curve& curve) {
    return {keys.end, curve, keys.begin};
  }
  __device__ __forceinline__ KeyRange keys() const { return {begin, end}; }
};

// The query rows a lane holds in the layout of mma.h, two of every 16 from `first` on. What is known of them is in
// registers, or where these are scarce in shared memory: a block's first barrier makes it known.
template <int row_tiles, bool general, bool in_registers = true>
struct LaneRows {
  using Facts = RowFacts<general>;
  static constexpr int count = 2 * row_tiles;
  int first;          // of the warp
  KeyRange any, all;  // from the first to the last key that one of its rows sees; what all see that see anything
  Facts own[in_registers ? count : 1];
  Facts* shared;  // of the warp

  __device__ __forceinline__ LaneRows(const Call& call, const Place& place, int first_row, Facts* facts = nullptr)
      : first(first_row), shared(facts) {
    any = {keys_in<general>(call, place), 0};
    all = {0, keys_in<general>(call, place)};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const KeyRange keys = keys_seen<general>(call, place, index(i));
      const Facts row = Facts::make(keys, load_curve(call, place, index(i), keys));
      if constexpr (in_registers) own[i] = row;
      else if (threadIdx.x % 4 == 0) shared[index(i) - first] = row;
      any.end = keys.end > any.end ? keys.end : any.end;
      all.end = keys.end > 0 && keys.end < all.end ? keys.end : all.end;
      any.begin = keys.end > 0 && keys.begin < any.begin ? keys.begin : any.begin;
      all.begin = keys.begin > all.begin ? keys.begin : all.begin;
    }
    any = {general ? -largest_of_warp(-any.begin) : 0, largest_of_warp(any.end)};
    all = {general ? largest_of_warp(all.begin) : 0, -largest_of_warp(-all.end)};
  }

  __device__ __forceinline__ Facts facts(int i) const {
    if constexpr (in_registers) return own[i];
    else return shared[index(i) - first];
  }

  __device__ __forceinline__ KeyRange keys(int i) const { return facts(i).keys(); }
  __device__ __forceinline__ bool sees(int i) const { return facts(i).end > 0; }

  // Whether some of the warp's rows see some of the `count` keys from first_key on.
  __device__ __forceinline__ bool see(int first_key, int key_count) const {
    if constexpr (general) return first_key < any.end && first_key + key_count > any.begin;
    else return first_key < any.end;
  }

  __device__ __forceinline__ int index(int i) const {
    return first + i / 2 * 16 + i % 2 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // Scores of the keys from first_key on, times `scale` and plus `shift` of their row, become logits; -infinity where a
  // row does not look, but for rows that see nothing, whose results nobody may use.
  template <int tiles>
  __device__ __forceinline__ void to_logits(float (&x)[row_tiles][tiles][4], PriorKind prior, int first_key,
                                            float scale, const float (&shift)[count]) const {
    const int key = first_key + 2 * (static_cast<int>(threadIdx.x) % 4);
    with_prior(prior, [&](auto kind) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const Curve curve = facts(i).curve;
        const float t = static_cast<float>(key + 1 - curve.peak);
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = x[i / 2][n][i % 2 * 2 + e];
            score = logit<decltype(kind)::value>(curve, score * scale + shift[i], t + static_cast<float>(8 * n + e));
          }
      }
    });
    if constexpr (general)
      if (first_key >= all.begin && first_key + 8 * tiles <= all.end) return;
    if constexpr (!general)
      if (first_key + 8 * tiles <= all.end) return;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const KeyRange seen = keys(i);
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (key + 8 * n + e >= seen.end || (general && key + 8 * n + e < seen.begin))
            x[i / 2][n][i % 2 * 2 + e] = -INFINITY;
    }
  }

  // Adds gradients of the logits of the keys from first_key on, each times its terms, to the rows' sums.
  template <int tiles>
  __device__ __forceinline__ void add_prior_terms(PriorSums (&sums)[count], const float (&grads)[row_tiles][tiles][4],
                                                  PriorKind prior, int first_key) const {
    const int key = first_key + 2 * (static_cast<int>(threadIdx.x) % 4);
    with_prior(prior, [&](auto kind) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const Curve curve = facts(i).curve;
        const float t = static_cast<float>(key + 1 - curve.peak);
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            sums[i].template add<decltype(kind)::value>(curve, grads[i / 2][n][i % 2 * 2 + e],
                                                        t + static_cast<float>(8 * n + e));
      }
    });
  }
};

}  // namespace cuda
}  // namespace gma

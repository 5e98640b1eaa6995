// What a kernel knows about its query rows: how far they see, their prior, and which of their weights are dropped.
#pragma once

#include <type_traits>

#include "../philox.h"
#include "arguments.h"

namespace gma {
namespace cuda {

struct DeviceMath {
  static __device__ __forceinline__ float log(float x) { return logf(x); }
};

struct Row {
  RowPrior<float> prior;
  float score_scale;  // NaN in a row with impossible values, so that they show in all it computes
  int visible;        // 0 to S
};

GMA_DEVICE int visible_of(const Call& call, const Place& place, int row) {
  if (row >= call.rows) return 0;
  const int visible = *at_row(call.visible, place, row);
  return visible < 0 ? 0 : visible < call.keys ? visible : call.keys;
}

GMA_DEVICE bool is_finite(float x) { return x - x == 0; }

// a row that sees nothing gets a prior that is never used
GMA_DEVICE Row load_row(const Call& call, const Place& place, int index) {
  Row row{};
  row.score_scale = call.score_scale;
  row.visible = visible_of(call, place, index);
  if (row.visible == 0 || call.prior == PriorKind::none) return row;
  const float center = *at_row(call.center, place, index), width = *at_row(call.width, place, index);
  if (!(is_finite(center) && is_finite(width) && width > 0)) row.score_scale = NAN;
  row.prior = make_row_prior(center, width, row.visible);
  return row;
}

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

// Of base 2. t: distance of the key from the row's peak.
template <PriorKind kind>
GMA_DEVICE float logit(const RowPrior<float>& prior, float score_scale, float score, float t) {
  return score * score_scale + log_prior<kind, DeviceMath>(prior, t) * static_cast<float>(log2_e);
}

// Scores of 16 rows by the keys from `first_key` on, in the layout of mma.h, become logits; -infinity past `visible`.
// rows: those the lane holds.
template <int tiles>
GMA_DEVICE void scores_to_logits(float (&x)[tiles][4], const Row (&rows)[2], PriorKind prior, int first_key) {
  const int first = first_key + 2 * (static_cast<int>(threadIdx.x) % 4);
  with_prior(prior, [&](auto kind) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float t = static_cast<float>(first + 1 - rows[r].prior.peak);
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          x[n][2 * r + e] = logit<decltype(kind)::value>(rows[r].prior, rows[r].score_scale, x[n][2 * r + e],
                                                         t + static_cast<float>(8 * n + e));
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (first_key + 8 * tiles <= rows[r].visible) continue;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (first + 8 * n + e >= rows[r].visible) x[n][2 * r + e] = -INFINITY;
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

// The largest visible among `count` rows, in every thread of a warp.
GMA_DEVICE int largest_visible(const Call& call, const Place& place, int first, int count) {
  int largest = 0;
  for (int row = static_cast<int>(threadIdx.x) % 32; row < count; row += 32) {
    const int visible = visible_of(call, place, first + row);
    largest = visible > largest ? visible : largest;
  }
  return largest_of_warp(largest);
}

}  // namespace cuda
}  // namespace gma

// What rows with narrow priors need not look at.
//
// A weight further than `lowest` below the largest of its row is exactly 0: Math::exp makes it so. By Cauchy-Schwarz no
// score of a row is larger than `bound`, the norm of its query times the largest norm of a key, scaled, and none is
// smaller than -bound. At the peak the log-prior is 0. So weights are 0 where it is below lowest - 2 bound, and a row
// may be cut down to the positions where it is not: as if `first` and `visible` were nearer.
#pragma once

#include "math.h"
#include "prefetch.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// Shorter sources, and fewer rows, are not worth a look at all keys.
constexpr int64_t narrowed_keys = 512, narrowed_rows = 32;

GMA_INLINE bool is_narrowed(const ForwardParams& p) { return p.largest_keys != nullptr; }

// How far from its peak, at least, log-priors are above -depth: to the side where the center is, and to the other.
struct Reach {
  double towards_center, away;
};

template <class T>
GMA_INLINE Reach reach_of(PriorKind kind, const RowPrior<T>& prior, double depth) {
  const double width = double(prior.width), offset = absolute(double(prior.offset));
  if (kind == PriorKind::laplace) {
    const double away = depth * width / sqrt_two;
    return {away + 2 * offset, away};
  }
  // the roots of t (t / 2 + offset) = depth width^2, in widths, where nothing that matters overflows
  const double center = offset / width, root = __builtin_sqrt(center * center + 2 * depth);
  return {width * (center + root), width * (2 * depth / (center + root))};
}

// Cuts a row that sees the keys first .. visible - 1 down to those within reach. With NaN it stays as it is.
template <class T>
GMA_INLINE void cut_to_reach(PriorKind kind, const RowPrior<T>& prior, double depth, int32_t& first, int32_t& visible) {
  const Reach reach = reach_of(kind, prior, depth);
  const bool is_right = prior.offset < 0;  // the center of the peak
  // one position more than enough, for the rounding of all this
  const double last = prior.peak + (is_right ? reach.towards_center : reach.away) + 1;
  const double before = prior.peak - (is_right ? reach.away : reach.towards_center) - 2;
  if (last < visible) visible = int32_t(last);
  if (before > first) first = int32_t(before);
}

template <class E>
GMA_INLINE Arithmetic<E> squared_norm(const E* row, int64_t columns) {
  using T = Arithmetic<E>;
  constexpr int n = lanes<T>;
  Vector<T> sum{};
  for (int64_t c = 0; c < columns; c += n) {
    const Vector<T> x = columns - c < n ? load_first(row + c, columns - c) : load(row + c);
    sum += x * x;
  }
  return sum_of_lanes<T>(sum);
}

// The distance from the largest logarithm of a row's weights to one that is certainly 0, if scores are 0.
template <class T>
constexpr double visible_depth = 1 - double(MathConstants<T>::lowest);

// What a row sees that may have a weight; p is narrowed.
template <class E, class T>
GMA_INLINE void narrow_row(const ForwardParams& p, int64_t b, int64_t h, int64_t i, const RowPrior<T>& prior,
                           int32_t& first, int32_t& visible) {
  const int64_t key_heads = p.heads / p.group;
  const double query = double(squared_norm(row_of<E>(p.query, b, h, i), p.head_size));
  const double key = p.largest_keys[(p.sentence + b) * key_heads + h / p.group];
  // a little more than twice the bound, for rounded scores
  const double scores = 2.01 * absolute(p.scale) * __builtin_sqrt(query * key);
  cut_to_reach(p.prior, prior, visible_depth<T> + scores, first, visible);
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

// The elementwise part of the backward, a row of a tile at a time.
#pragma once

#include "rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// sums[row] += the lanes of its vector, for `count` rows of a group; adds 0 to what follows, up to a whole vector.
template <class T>
GMA_INLINE void add_row_sums(Vector<T> (&rows)[group_lanes<T>], int count, double* sums) {
  constexpr int n = lanes<double>;
  for (int r = count; r < group_lanes<T>; ++r) rows[r] = Vector<T>{};
  for (int r = 0; r < count; r += n) {
    Vector<double> square[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      const T* row = reinterpret_cast<const T*>(rows + r + i);
      double part[n];
      for (int lane = 0; lane < n; ++lane) {
        part[lane] = double(row[lane]);
        if constexpr (lanes<T> == 2 * n) part[lane] += double(row[n + lane]);
      }
      square[i] = load(part);
    }
    store(sums + r,
          load(sums + r) + reduce_rows<double>(square, [](Vector<double> x, Vector<double> y) { return x + y; }));
  }
}

// Exponents are clamped to this: a caller who did not get the logsumexp from the forward may pass anything.
template <class T>
constexpr T largest_exponent = T(40);

// One row of a tile: turns scores into exponentials, and gradients of the weights after dropout into those before it.
// Where masked both are 0 from `seen` on and before `first`.
template <PriorKind kind, Mask mask, bool dropout, class T>
GMA_INLINE void exponentiate_row(T* weights, T* grads, int64_t width, int64_t first, int64_t seen, T first_t,
                                 const RowPrior<T>& prior, T logsumexp, const T* keep, Vector<T>& weight_sum,
                                 Vector<T>& grad_sum) {
  constexpr int n = lanes<T>;
  Vector<T> t = count_up<T>() + first_t, sum{}, product{};
  for (int64_t c = 0; c < width; c += n, t += T(n)) {
    const Vector<T> x = load(weights + c) + log_prior<kind, Math<T>>(prior, t) - logsumexp;
    Vector<T> weight = Math<T>::exp(minimum(broadcast(largest_exponent<T>), x)), grad = load(grads + c);
    if constexpr (mask != Mask::none) {
      // these may come from a key that no row sees, and be NaN
      const BitsVector<T> is_seen = lanes_seen<mask, T>(first - c, seen - c);
      weight = is_seen ? weight : Vector<T>{};
      grad = is_seen ? grad : Vector<T>{};
    }
    if constexpr (dropout) grad *= load(keep + c);
    store(weights + c, weight);
    if constexpr (mask != Mask::none || dropout) store(grads + c, grad);
    sum += weight;
    product += weight * grad;
  }
  weight_sum = sum;
  grad_sum = product;
}

template <class T>
struct PriorSums {
  T center, width;  // over j of ds times the prior's terms
};

// One row of a tile: turns exponentials into weights after dropout, and gradients of weights into those of logits times
// the scale. Both are 0 before `from` and from `seen`, which are those of the row's group, to `width`.
template <PriorKind kind, bool dropout, class T>
GMA_INLINE void differentiate_row(T* weights, T* grads, int64_t from, int64_t seen, int64_t width, T first_t,
                                  const RowPrior<T>& prior, T factor, T delta, T delta_rest, T scale, const T* keep,
                                  PriorSums<T>& sums) {
  constexpr int n = lanes<T>;
  Vector<T> t = count_up<T>() + (first_t + T(from)), center{}, width_sum{};
  int64_t c = 0;
  for (; c < from; c += n) {
    store(weights + c, Vector<T>{});
    store(grads + c, Vector<T>{});
  }
  for (; c < seen; c += n, t += T(n)) {
    const Vector<T> weight = load(weights + c) * factor, grad = weight * (load(grads + c) - delta - delta_rest);
    if constexpr (dropout) store(weights + c, weight * load(keep + c));
    else store(weights + c, weight);
    store(grads + c, grad * scale);
    if constexpr (kind != PriorKind::none) {
      const PriorTerms<Vector<T>> terms = prior_terms<kind, Math<T>>(prior, t);
      center += grad * terms.center;
      width_sum += grad * terms.width;
    }
  }
  for (; c < width; c += n) {
    store(weights + c, Vector<T>{});
    store(grads + c, Vector<T>{});
  }
  if constexpr (kind != PriorKind::none) {
    sums.center += sum_of_lanes<T>(center);
    sums.width += sum_of_lanes<T>(width_sum);
  }
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

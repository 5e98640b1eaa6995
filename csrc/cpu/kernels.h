// The kernels of one level, for every element type. Included once by each level's unit.
#pragma once

#include "backward.h"
#include "decode.h"
#include "forward.h"
#include "largest_keys.h"
#include "level.h"
#include "weights.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

template <class Body>
GMA_INLINE auto with_element([[maybe_unused]] ScalarType type, Body body) {
  // a unit with products of bfloat16 serves nothing else: see Level::others
  if constexpr (multiplies_bfloat16) return body(BFloat16());
  else switch (type) {
      case ScalarType::float64: return body(double());
      case ScalarType::float16: return body(Half());
      case ScalarType::bfloat16: return body(BFloat16());
      default: return body(float());
    }
}

inline void forward(const ForwardParams& p, const Parallel& parallel) {
  if (p.rows == 0) return;
  with_element(p.scalar_type, [&](auto element) {
    using E = decltype(element);
    p.rows < rows_worth_packing ? decode_all<E>(p, parallel) : forward_all<E>(p, parallel);
  });
}

// Decoding adds up scores in another order than the backward, which therefore recomputes the logsumexp of so few rows
// in the way of many. The context that comes with it is not read.
template <class E>
GMA_INLINE void describe_new_logsumexp(ForwardParams& p, Arena& arena) {
  const int64_t rows = all_rows(p);
  p.context = {arena.take<E>(rows * p.heads * p.value_size), p.heads * p.rows * p.value_size, p.value_size,
               p.heads * p.value_size};
  p.logsumexp = {arena.take<Arithmetic<E>>(rows * p.heads), p.heads * p.rows, 1, p.heads};
}

inline int64_t backward_workspace(const BackwardParams& p) {
  return with_element(p.scalar_type, [&](auto element) {
    using E = decltype(element);
    ForwardParams again = p;
    Arena measure{0, backward_workspace<E>(p)};
    if (p.rows < rows_worth_packing) describe_new_logsumexp<E>(again, measure);
    return measure.used;
  });
}

inline void backward(const BackwardParams& p, void* workspace, const Parallel& parallel) {
  with_element(p.scalar_type, [&](auto element) {
    using E = decltype(element);
    BackwardParams own = p;
    if (p.rows < rows_worth_packing) {
      ForwardParams again = p;
      Arena arena{reinterpret_cast<uintptr_t>(workspace), backward_workspace<E>(p)};
      describe_new_logsumexp<E>(again, arena);
      again.drop_below = 0;
      forward_all<E>(again, parallel);
      own.logsumexp = again.logsumexp;
    }
    backward_all<E>(own, workspace, parallel);
  });
}

inline bool narrowing_pays(const ForwardParams& p) {
  return with_element(p.scalar_type, [&](auto element) { return narrowing_pays<decltype(element)>(p); });
}

inline void find_largest_keys(const ForwardParams& p, double* largest, const Parallel& parallel) {
  with_element(p.scalar_type, [&](auto element) { find_largest_keys<decltype(element)>(p, largest, parallel); });
}

inline void attention_weights(const ForwardParams& p, void* weights, const Parallel& parallel) {
  with_element(p.scalar_type, [&](auto element) { weights_all<decltype(element)>(p, weights, parallel); });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

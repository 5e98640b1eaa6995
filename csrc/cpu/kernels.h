// Everything one level offers, chosen by element type. Included once by each level's unit.
#pragma once

#include "backward.h"
#include "decode.h"
#include "forward.h"
#include "level.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

template <class Body>
GMA_INLINE auto with_element(ScalarType type, Body body) {
  switch (type) {
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

inline int64_t backward_workspace(const BackwardParams& p) {
  return with_element(p.scalar_type, [&](auto element) { return backward_workspace<decltype(element)>(p); });
}

inline void backward(const BackwardParams& p, void* workspace, const Parallel& parallel) {
  with_element(p.scalar_type, [&](auto element) { backward_all<decltype(element)>(p, workspace, parallel); });
}

inline void attention_weights(const ForwardParams& p, void* weights, const Parallel& parallel) {
  with_element(p.scalar_type, [&](auto element) { weights_all<decltype(element)>(p, weights, parallel); });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

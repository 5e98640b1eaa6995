// Rows of the caller's matrices.
#pragma once

#include "../gaussian_attention.h"
#include "simd.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

template <class E>
GMA_INLINE const E* row_of(const View<const void>& view, int64_t b, int64_t h, int64_t i) {
  return static_cast<const E*>(view.data) + b * view.batch_stride + h * view.head_stride + i * view.row_stride;
}
template <class E>
GMA_INLINE E* row_of(const View<void>& view, int64_t b, int64_t h, int64_t i) {
  return static_cast<E*>(view.data) + b * view.batch_stride + h * view.head_stride + i * view.row_stride;
}

// All the rows of one head.
template <class E>
struct MatrixRows {
  const E* first;
  int64_t stride;

  GMA_INLINE const E* operator[](int64_t j) const { return first + j * stride; }
  GMA_INLINE MatrixRows from(int64_t j) const { return {first + j * stride, stride}; }
};

template <class E>
GMA_INLINE MatrixRows<E> rows_of(const View<const void>& view, int64_t b, int64_t h) {
  return {row_of<E>(view, b, h, 0), view.row_stride};
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

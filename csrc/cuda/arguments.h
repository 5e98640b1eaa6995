// What kernels are given: the params of the call, in the form the device wants them.
#pragma once

#include "../prior.h"
#include "math.h"
#include "split.h"

namespace gma {
namespace cuda {

// [B, H, rows, columns] of the call's scalar type, read or written.
struct Matrix {
  void* data;
  int64_t batch_stride, head_stride, row_stride;
  int columns;
  bool aligned;  // every row begins at a multiple of 16 bytes
};

struct Call {
  int heads, rows, keys;
  PriorKind prior;
  float score_scale;  // scale, for exponentials of base 2
  float scale;
  uint32_t drop_below;
  float keep_scale;
  uint64_t seed;
  const uint64_t* seed_pointer;
  View<const float> center, width;
  View<const int32_t> visible;
  View<float> logsumexp;
};

struct ForwardArguments {
  Call call;
  Matrix query, key, value, context;
  Split split;
};

struct WeightsArguments {
  Call call;
  Matrix query, key;
  void* weights;  // [B, H, T, S]
};

// How far some rows see: the largest and the least visible.
struct Extent {
  int largest, least;
};

// What the backward over keys needs of 16 query rows.
struct alignas(16) RowGroup {
  static constexpr int rows = 16;
  int visible[rows], peak[rows];
  float a[rows], b[rows];  // see Curve
  float shift[rows];       // -logsumexp, of base 2; NaN where center or width are impossible
  float delta[rows];       // sum over j of beta_ij dbeta_ij
  float factor[rows];      // what brings the sum of the weights to 1
  Extent extent;
};

struct BackwardArguments {
  Call call;
  Matrix query, key, value, context, grad_context, grad_query, grad_key, grad_value;
  View<float> grad_center, grad_width;  // one value for every head
  RowGroup* groups;                     // [B, H, ceil(T / 16)]
};

inline bool rows_are_aligned(const void* data, int64_t size, const int64_t (&sizes)[3], const int64_t (&strides)[3]) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
  for (int i = 0; i < 3; ++i)
    if (sizes[i] > 1 && strides[i] * size % 16 != 0) return false;
  return true;
}

template <class Pointer>
Matrix make_matrix(const ForwardParams& p, const View<Pointer>& view, int64_t rows, int64_t columns) {
  const int64_t size = p.scalar_type == ScalarType::float32 ? 4 : 2;
  const bool aligned = rows_are_aligned(view.data, size, {p.batches, p.heads, rows},
                                        {view.batch_stride, view.head_stride, view.row_stride});
  return {const_cast<void*>(static_cast<const void*>(view.data)),
          view.batch_stride,
          view.head_stride,
          view.row_stride,
          static_cast<int>(columns),
          aligned};
}

template <class To, class From>
View<To> cast_view(const View<From>& view) {
  return {static_cast<To*>(view.data), view.batch_stride, view.head_stride, view.row_stride};
}

inline Call make_call(const ForwardParams& p) {
  Call call{};
  call.heads = static_cast<int>(p.heads);
  call.rows = static_cast<int>(p.rows);
  call.keys = static_cast<int>(p.keys);
  call.prior = p.prior;
  call.score_scale = static_cast<float>(p.scale * log2_e);
  call.scale = static_cast<float>(p.scale);
  call.drop_below = p.drop_below;
  call.keep_scale = p.drop_below > 0 ? static_cast<float>(p.keep_scale) : 1.0f;
  call.seed = p.seed;
  call.seed_pointer = p.seed_pointer;
  call.center = cast_view<const float>(p.center);
  call.width = cast_view<const float>(p.width);
  call.visible = p.visible;
  call.logsumexp = cast_view<float>(p.logsumexp);
  return call;
}

inline ForwardArguments make_forward(const ForwardParams& p, const Split& split) {
  return {make_call(p),
          make_matrix(p, p.query, p.rows, p.head_size),
          make_matrix(p, p.key, p.keys, p.head_size),
          make_matrix(p, p.value, p.keys, p.value_size),
          make_matrix(p, p.context, p.rows, p.value_size),
          split};
}

// Which head, and which of its tiles, a block of threads works on.
struct Place {
  int batch, head;
  int64_t flat_head;  // b * H + h
  int tile;
};

// Tiles of one head are neighbours: blocks that run at the same time share keys and values in the L2 cache.
GMA_DEVICE Place find_place(const Call& call, int tiles) {
  const unsigned flat = blockIdx.x / static_cast<unsigned>(tiles), heads = static_cast<unsigned>(call.heads);
  return {static_cast<int>(flat / heads), static_cast<int>(flat % heads), flat,
          static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles))};
}

template <class T>
GMA_DEVICE T* at_row(const View<T>& view, const Place& place, int64_t row) {
  return view.data + place.batch * view.batch_stride + place.head * view.head_stride + row * view.row_stride;
}

// The rows of one head.
template <class scalar>
struct HeadRows {
  scalar* data;
  int64_t stride;
  int columns;
  bool aligned;

  __device__ __forceinline__ scalar* operator[](int64_t row) const { return data + row * stride; }
};

template <class scalar>
GMA_DEVICE HeadRows<scalar> rows_of(const Matrix& matrix, const Place& place) {
  scalar* data =
      static_cast<scalar*>(matrix.data) + place.batch * matrix.batch_stride + place.head * matrix.head_stride;
  return {data, matrix.row_stride, matrix.columns, matrix.aligned};
}

}  // namespace cuda
}  // namespace gma

// What kernels are given: the params of the call, in the form the device wants them.
#pragma once

#include "../prior.h"
#include "math.h"

namespace gma {
namespace cuda {

// [B, H, rows, columns] of the call's scalar type, read or written.
struct Matrix {
  void* data;
  int64_t batch_stride, head_stride, row_stride;
  int columns;
  bool aligned;  // every row begins at a multiple of 16 bytes
};

// Some of it is for general calls only (see `is_general`); the kernels for plain ones do not look at it.
struct Call {
  int heads, rows, keys;  // of packed sentences the rows and keys of all
  int group;              // heads that share one of keys
  int sentences;
  const int32_t *query_offsets, *key_offsets;  // null unless sentences are packed
  PriorKind prior;
  float score_scale;  // scale, for exponentials of base 2
  float scale;
  uint32_t drop_below;
  float keep_scale;
  uint64_t seed;
  const uint64_t* seed_pointer;
  View<const float> center, width;
  View<const int32_t> visible, first;  // first: null for 0
  View<float> logsumexp;
};

// Few query rows and a long source: how the source is split among blocks of threads (see split.h), and where the parts
// go; null where there is one.
struct Split {
  int count, keys;       // of parts, of a part
  float *maximum, *sum;  // [stacks, rows, count]: of a part's softmax, base 2
  float* context;        // [stacks, rows, count, head tile]: values weighted with 2^(logit - maximum)
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

// Whether a call needs what the kernels for plain calls leave out.
inline bool is_general(const ForwardParams& p) {
  return p.group > 1 || p.first.data != nullptr || p.query_offsets != nullptr;
}

inline bool rows_are_aligned(const void* data, int64_t size, const int64_t (&sizes)[3], const int64_t (&strides)[3]) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
  for (int i = 0; i < 3; ++i)
    if (sizes[i] > 1 && strides[i] * size % 16 != 0) return false;
  return true;
}

template <class Pointer>
Matrix make_matrix(const ForwardParams& p, const View<Pointer>& view, int64_t heads, int64_t rows, int64_t columns) {
  const int64_t size = p.scalar_type == ScalarType::float32 ? 4 : 2;
  // packed sentences lie in memory as one
  const int64_t batches = p.query_offsets != nullptr ? 1 : p.batches;
  const bool aligned =
      rows_are_aligned(view.data, size, {batches, heads, rows}, {view.batch_stride, view.head_stride, view.row_stride});
  return {const_cast<void*>(static_cast<const void*>(view.data)),
          view.batch_stride,
          view.head_stride,
          view.row_stride,
          static_cast<int>(columns),
          aligned};
}

// Of query rows, and of keys.
template <class Pointer>
Matrix row_matrix(const ForwardParams& p, const View<Pointer>& view, int64_t columns) {
  return make_matrix(p, view, p.heads, p.rows, columns);
}
template <class Pointer>
Matrix key_matrix(const ForwardParams& p, const View<Pointer>& view, int64_t columns) {
  return make_matrix(p, view, p.heads / p.group, p.keys, columns);
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
  call.group = static_cast<int>(p.group);
  call.sentences = static_cast<int>(p.batches);
  call.query_offsets = p.query_offsets;
  call.key_offsets = p.key_offsets;
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
  call.first = p.first;
  call.logsumexp = cast_view<float>(p.logsumexp);
  return call;
}

inline ForwardArguments make_forward(const ForwardParams& p, const Split& split) {
  return {make_call(p),
          row_matrix(p, p.query, p.head_size),
          key_matrix(p, p.key, p.head_size),
          key_matrix(p, p.value, p.value_size),
          row_matrix(p, p.context, p.value_size),
          split};
}

}  // namespace cuda
}  // namespace gma

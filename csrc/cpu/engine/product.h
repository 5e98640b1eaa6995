// Products of few rows with packed weights.
#pragma once

#include "../multiply.h"
#include "level.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

using engine::Inputs;
using engine::PackedWeights;
using engine::padded;
using engine::panel_columns;
using engine::WeightType;

// rows held in registers together; a single row takes more columns at a time, for as many sums under way
constexpr int most_rows = 6;
constexpr int register_vectors(int rows) {
#if GMA_VECTOR_BYTES == 64 || defined(__aarch64__)
  return 4 + 0 * rows;
#else
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
#endif
}

// So many terms are summed up one after the other, then added to the rest: a longer chain would lose digits.
constexpr int64_t chain_length = 128;

GMA_INLINE Vector<float> load_weights(const float* from) { return load(from); }
GMA_INLINE Vector<float> load_weights(const BFloat16* from) { return load(from); }
GMA_INLINE Vector<float> load_weights(const int8_t* from) {
  typedef int8_t Bytes __attribute__((vector_size(lanes<float>)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Vector<int32_t>), Vector<float>);
}

// y[rows, columns] (+)= x[rows, depth] w[depth, columns], a panel of weights or some of its columns
template <int rows, class W>
void multiply_block(const float* x, int64_t x_stride, const W* w, int64_t depth, float* y, int64_t y_stride,
                    bool accumulate) {
  constexpr int vectors = register_vectors(rows), n = lanes<float>;
  for (int64_t column = 0; column < panel_columns; column += vectors * n) {
    Vector<float> sum[rows][vectors] = {};
    const W* right = w + column;
    for (int64_t k = 0; k < depth; ++k, right += panel_columns) {
      Vector<float> weights[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) weights[v] = load_weights(right + v * n);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sum[r][v] += x[r * x_stride + k] * weights[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        float* at = y + r * y_stride + column + v * n;
        store(at, accumulate ? load(at) + sum[r][v] : sum[r][v]);
      }
  }
}

// what follows the sums: scales, bias, ReLU
GMA_INLINE void finish(const PackedWeights& weights, int64_t panel, int64_t rows, float* y, int64_t y_stride,
                       bool relu) {
  const float* scales = weights.scales != nullptr ? weights.scales + panel * panel_columns : nullptr;
  const float* bias = weights.bias + panel * panel_columns;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < panel_columns; c += lanes<float>) {
      float* at = y + r * y_stride + c;
      Vector<float> sum = load(at);
      if (scales != nullptr) sum *= load(scales + c);
      sum += load(bias + c);
      store(at, relu ? maximum(sum, Vector<float>{}) : sum);
    }
}

// Asks for a group's share of the panel after this one, which would otherwise be waited for by its first group. A
// single group does without: it reads as fast as memory gives, in order. Past the last panel nothing is read, only
// asked for.
GMA_INLINE void expect_panel(const void* next, int64_t bytes, int64_t group, int64_t groups) {
  if (groups == 1) return;
  const char* at = static_cast<const char*>(next);
  for (int64_t b = bytes * group / groups; b < bytes * (group + 1) / groups; b += 64) __builtin_prefetch(at + b, 0, 2);
}

template <class W, size_t... rows_minus_one>
GMA_INLINE void multiply_rows(std::index_sequence<rows_minus_one...>, int64_t rows, const float* x, int64_t x_stride,
                              const W* w, int64_t depth, float* y, int64_t y_stride, bool accumulate) {
  using Block = void (*)(const float*, int64_t, const W*, int64_t, float*, int64_t, bool);
  static constexpr Block blocks[] = {multiply_block<int(rows_minus_one) + 1, W>...};
  blocks[rows - 1](x, x_stride, w, depth, y, y_stride, accumulate);
}

template <class W>
void multiply_panels(const PackedWeights& weights, const Inputs& x, int64_t first_panel, int64_t panels, float* y,
                     int64_t y_stride, bool relu) {
  const int64_t groups = (x.rows + most_rows - 1) / most_rows, size = weights.inputs * panel_columns;
  for (int64_t panel = first_panel; panel < first_panel + panels; ++panel) {
    const W* w = static_cast<const W*>(weights.panels) + panel * size;
    for (int64_t group = 0; group < groups; ++group) {
      expect_panel(w + size, size * int64_t(sizeof(W)), group, groups);
      const int64_t row = x.rows * group / groups, rows = x.rows * (group + 1) / groups - row;
      float* to = y + row * y_stride + panel * panel_columns;
      for (int64_t k = 0; k < weights.inputs; k += chain_length)
        multiply_rows(std::make_index_sequence<most_rows>(), rows, x.numbers + row * x.stride + k, x.stride,
                      w + k * panel_columns, weights.inputs - k < chain_length ? weights.inputs - k : chain_length, to,
                      y_stride, k > 0);
      finish(weights, panel, rows, to, y_stride, relu);
    }
  }
}

inline void multiply_packed(const PackedWeights& weights, const Inputs& x, int64_t first_panel, int64_t panels,
                            float* y, int64_t y_stride, bool relu) {
  switch (weights.type) {
    case WeightType::float32: return multiply_panels<float>(weights, x, first_panel, panels, y, y_stride, relu);
    case WeightType::bfloat16: return multiply_panels<BFloat16>(weights, x, first_panel, panels, y, y_stride, relu);
    case WeightType::int8: return multiply_panels<int8_t>(weights, x, first_panel, panels, y, y_stride, relu);
  }
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

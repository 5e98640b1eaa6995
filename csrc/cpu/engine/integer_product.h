// Products of bytes: four at a time into sums of 32 bits, which are exact, so that their order does not matter.
#pragma once

// gcc 12 takes its own "undefined" vectors for mistakes
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "product.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// y of 16 outputs from `column` on, of sums without the correction
GMA_INLINE void finish_sums(__m512i sums, const PackedWeights& weights, int64_t column, float x_scale, bool relu,
                            float* y) {
  const __m512i exact = _mm512_sub_epi32(sums, _mm512_loadu_si512(weights.corrections + column));
  const Vector<float> scale = load(weights.scales + column) * x_scale;
  const Vector<float> result = Vector<float>(_mm512_cvtepi32_ps(exact)) * scale + load(weights.bias + column);
  store(y, relu ? maximum(result, Vector<float>{}) : result);
}

// x is unsigned by an offset of 128, which 128 times the sum of the weights takes back.
template <int rows>
void multiply_bytes_block(const uint8_t* x, int64_t x_stride, const float* x_scales, const PackedWeights& weights,
                          int64_t panel, float* y, int64_t y_stride, bool relu) {
  constexpr int vectors = panel_columns / 16;
  const int64_t fours = (weights.inputs + 3) / 4, first = panel * panel_columns;
  const int8_t* w = static_cast<const int8_t*>(weights.panels) + first * padded(weights.inputs);
  // no __m512i, which may be an alias of anything: gcc 12 would write it to memory after every product
  Vector<int32_t> sum[rows][vectors] = {};
  for (int64_t k = 0; k < fours; ++k, w += 4 * panel_columns) {
    __m512i right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = _mm512_loadu_si512(w + v * 64);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * x_stride + 4 * k, sizeof four);
      const __m512i left = _mm512_set1_epi32(four);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = Vector<int32_t>(_mm512_dpbusd_epi32(__m512i(sum[r][v]), left, right[v]));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      finish_sums(__m512i(sum[r][v]), weights, first + v * 16, x_scales[r], relu, y + r * y_stride + first + v * 16);
}

template <size_t... rows_minus_one>
GMA_INLINE void multiply_bytes(std::index_sequence<rows_minus_one...>, const PackedWeights& weights, const Inputs& x,
                               int64_t first_panel, int64_t panels, float* y, int64_t y_stride, bool relu) {
  using Block = void (*)(const uint8_t*, int64_t, const float*, const PackedWeights&, int64_t, float*, int64_t, bool);
  static constexpr Block blocks[] = {multiply_bytes_block<int(rows_minus_one) + 1>...};
  const int64_t groups = (x.rows + most_rows - 1) / most_rows, size = padded(weights.inputs) * panel_columns;
  for (int64_t panel = first_panel; panel < first_panel + panels; ++panel)
    for (int64_t group = 0; group < groups; ++group) {
      expect_panel(static_cast<const int8_t*>(weights.panels) + (panel + 1) * size, size, group, groups);
      const int64_t row = x.rows * group / groups, rows = x.rows * (group + 1) / groups - row;
      blocks[rows - 1](x.bytes + row * x.stride, x.stride, x.scales + row, weights, panel, y + row * y_stride, y_stride,
                       relu);
    }
}

inline void multiply_integers(const PackedWeights& weights, const Inputs& x, int64_t first_panel, int64_t panels,
                              float* y, int64_t y_stride, bool relu) {
  if (weights.type != WeightType::int8) return multiply_packed(weights, x, first_panel, panels, y, y_stride, relu);
  multiply_bytes(std::make_index_sequence<most_rows>(), weights, x, first_panel, panels, y, y_stride, relu);
}

// bytes of a row, up to a multiple of 16, and what they are multiplied with
inline void quantize(const float* x, int64_t columns, uint8_t* bytes, float* scale) {
  constexpr int n = lanes<float>;
  Vector<float> largest{};
  int64_t c = 0;
  for (; c < columns; c += n) {
    const Vector<float> value = columns - c < n ? load_first(x + c, columns - c) : load(x + c);
    largest = maximum(value < 0 ? -value : value, largest);
  }
  const float most = max_of_lanes<float>(largest);
  *scale = most / 127;
  const float inverse = most > 0 ? 127 / most : 0;
  for (c = 0; c < columns; c += n) {
    const Vector<float> value = columns - c < n ? load_first(x + c, columns - c) : load(x + c);
    const __m512i levels = _mm512_cvtps_epi32(__m512(value * inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + c),
                     _mm512_cvtepi32_epi8(_mm512_add_epi32(levels, _mm512_set1_epi32(128))));
  }
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

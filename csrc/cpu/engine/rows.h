// What the engine does between its products, a row at a time.
#pragma once

#include "../decode.h"
#include "level.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

using engine::AttendedRow;

inline void attend_row(const AttendedRow& row, float* scratch) {
  const int64_t size = row.head_size;
  float* query = scratch;
  float* context = query + engine::padded(size);
  float* weights = context + engine::padded(size);
  for (int64_t h = 0; h < row.heads; ++h) {
    const int64_t a = h * row.alignment_step;
    const int32_t visible = row.visible[a];
    if (visible <= 0) {
      fill_zero(row.context + h * size, size);
      continue;
    }
    const MatrixRows<float> keys{row.memory + h * size, row.memory_stride};
    const MatrixRows<float> values{keys.first + row.heads * size, row.memory_stride};
    const MatrixRows<float> next{h + 1 < row.heads ? keys.first + size : row.next, row.memory_stride};
    const RowPrior<float> prior = make_row_prior(row.center[a], row.width[a], visible);
    pack_rows(row.query + h * size, 0, 1, size, row.scale, query, 0);
    dot_products<true>(query, keys, visible, size, values, weights);
    Vector<float> largest{};
    with_prior(row.prior, [&](auto kind) {
      largest = add_prior<kind.value, Mask::right>(weights, visible, visible, float(1 - prior.peak), prior,
                                                   broadcast<float>(-__builtin_inff()));
    });
    const float total = sum_of_lanes<float>(exponentiate(weights, visible, max_of_lanes<float>(largest)));
    weighted_sum(weights, values, visible, size, next, context);
    unpack_row(context, size, 1 / total, row.context + h * size);
  }
}

inline void add_and_normalize(const float* x, const float* change, const float* gain, const float* bias, float epsilon,
                              int64_t columns, float* to) {
  constexpr int n = lanes<float>;
  const int64_t end = engine::padded(columns);
  Vector<float> total{};
  for (int64_t c = 0; c < end; c += n) {
    const Vector<float> sum = load(x + c) + load(change + c);
    store(to + c, sum);
    total += sum;
  }
  const float mean = sum_of_lanes<float>(total) / float(columns);
  Vector<float> squares{};
  for (int64_t c = 0; c < end; c += n) {
    const Vector<float> distance = first_lanes<float>(columns - c) ? load(to + c) - mean : Vector<float>{};
    squares += distance * distance;
  }
  const float factor = 1 / __builtin_sqrtf(sum_of_lanes<float>(squares) / float(columns) + epsilon);
  for (int64_t c = 0; c < end; c += n) store(to + c, (load(to + c) - mean) * factor * load(gain + c) + load(bias + c));
}

// within 2 units in the last place
inline void hyperbolic_tangent(float* x, int64_t columns, float factor) {
  static constexpr float series[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                     -3.33332819422e-1f};
  for (int64_t c = 0; c < engine::padded(columns); c += lanes<float>) {
    const Vector<float> y = load(x + c) * factor, square = y * y, size = y < 0 ? -y : y;
    const Vector<float> bounded = size < 20.0f ? size : 20.0f + Vector<float>{};
    const Vector<float> far = 1.0f - 2.0f / (Math<float>::exp(2.0f * bounded) + 1.0f);
    const Vector<float> near = polynomial(square, series) * (square * y) + y;
    const Vector<float> signed_far = y < 0 ? -far : far;
    // a NaN stays one
    const Vector<float> result = size < 0.625f ? near : signed_far;
    store(x + c, y == y ? result : y);
  }
}

inline float dot(const float* x, const float* y, int64_t columns) {
  return sum_of_lanes<float>(lanes_of_product(x, y, engine::padded(columns)));
}

inline int64_t largest(const float* x, int64_t columns) {
  constexpr int n = lanes<float>;
  Vector<float> best = broadcast(-__builtin_inff());
  int64_t c = 0;
  for (; c + n <= columns; c += n) best = maximum(load(x + c), best);
  float top = max_of_lanes<float>(best);
  for (; c < columns; ++c) top = x[c] > top ? x[c] : top;
  int64_t index = 0;
  while (index < columns && !(x[index] == top)) ++index;
  return index < columns ? index : 0;
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

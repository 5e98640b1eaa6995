// What one SIMD level does for the decoding engine, as seen from outside its unit.
//
// Every function computes rows one by one or in groups, but each row always by the same operations in the same order:
// a result depends neither on the other rows of a call nor on how work is shared among threads.
#pragma once

#include "../../gaussian_attention.h"

namespace gma {
namespace engine {

// Weights are packed in panels of so many outputs, whatever the level. Rows of scratch are padded to whole panels.
constexpr int64_t panel_columns = 64;

// Rows of bytes are laid out for groups of so many.
constexpr int64_t byte_rows = 32;

constexpr int64_t padded(int64_t columns) { return (columns + panel_columns - 1) / panel_columns * panel_columns; }

enum class WeightType : int { float32, bfloat16, int8 };

// y = x W^T + bias
struct PackedWeights {
  WeightType type;
  int64_t inputs, outputs;
  const void* panels;          // [panels][inputs, 64], zero where there is no output; integer products:
                               // [inputs padded / 4, 64, 4], zero where there is no input, too
  const float* bias;           // of whole panels
  const float* scales;         // of int8: of whole panels
  const int32_t* corrections;  // of integer products: 128 times the sum of an output's weights

  int64_t panel_count() const { return padded(outputs) / panel_columns; }
};

// Rows as they go into a product: for integer products as bytes with a scale each, else as numbers.
struct Inputs {
  const float* numbers;
  const uint8_t* bytes;  // 128 + round(x / scale); there are `byte_rows` or a multiple, the last ones arbitrary
  const float* scales;
  int64_t rows, stride;
};

// One row of attention over what a sentence holds.
struct AttendedRow {
  const float* query;   // [heads, head_size]
  const float* memory;  // row j: its key [heads, head_size], and behind it its value
  int64_t memory_stride;
  const float* next;  // what will be attended to after this, so that it is fetched meanwhile
  int64_t heads, head_size;
  float scale;
  PriorKind prior;
  const float *center, *width;  // of each head, `alignment_step` apart: 0 where the heads share them
  const int32_t* visible;
  int64_t alignment_step;
  float* context;  // [heads, head_size]
};

struct EngineLevel {
  const char* name;
  bool has_integer_products;  // of int8 weights with rows that are made bytes, too
  // columns of some panels of y[rows, columns padded] from x[rows, inputs]
  void (*multiply)(const PackedWeights& weights, const Inputs& x, int64_t first_panel, int64_t panels, float* y,
                   int64_t y_stride, bool relu);
  // bytes[columns padded to 16] and their scale
  void (*quantize)(const float* x, int64_t columns, uint8_t* bytes, float* scale);
  // to = norm(x + change) * gain + bias, all padded; the padding of x and change is 0, and that of `to` becomes it
  void (*add_and_normalize)(const float* x, const float* change, const float* gain, const float* bias, float epsilon,
                            int64_t columns, float* to);
  // scratch: attention_scratch(head_size, largest visible) floats
  void (*attend)(const AttendedRow& row, float* scratch);
  // x = tanh(factor x), as far as whole panels go
  void (*hyperbolic_tangent)(float* x, int64_t columns, float factor);
  // sum of x_i y_i; both are padded with 0
  float (*dot)(const float* x, const float* y, int64_t columns);
  // the first of the largest
  int64_t (*largest)(const float* x, int64_t columns);
};

constexpr int64_t attention_scratch(int64_t head_size, int64_t visible) {
  return 2 * padded(head_size) + padded(visible) + panel_columns;
}

// The level that `simd_level()` names.
const EngineLevel& engine_level();

#if defined(__x86_64__)
extern const EngineLevel avx512_amx_engine, avx512_vnni_engine, avx512_engine, avx2_engine;
bool has_tiles();  // of the CPU and the compiler, granted by the system
#endif
extern const EngineLevel baseline_engine;

}  // namespace engine
}  // namespace gma

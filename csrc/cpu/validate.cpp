#include "validate.h"

#include <limits>
#include <sstream>
#include <stdexcept>

namespace gma {
namespace {

template <class T>
[[noreturn]] void reject(const char* name, int64_t b, int64_t h, int64_t i, T value, const char* expected) {
  std::ostringstream message;
  message << name << "[b=" << b << ", h=" << h << ", i=" << i << "] is " << value << "; expected " << expected;
  throw std::invalid_argument(message.str());
}

// comparisons with NaN are false
template <class T>
bool is_bad(int32_t visible, int32_t first, T center, T width) {
  constexpr T largest = std::numeric_limits<T>::max();
  const bool fine = (center >= -largest) & (center <= largest) & (width > 0) & (width <= largest);
  return (visible < 0) | (first < 0) | ((visible > first) & !fine);
}

// The row's values, which are bad.
template <class T>
[[noreturn]] void reject_row(bool bounded, int64_t b, int64_t h, int64_t i, int32_t visible, int32_t first, T center,
                             T width) {
  if (visible < 0) reject("visible", b, h, i, visible, "0 or more");
  if (first < 0) reject("first", b, h, i, first, "0 or more");
  if (is_bad<T>(1, 0, center, 1))
    reject("center", b, h, i, center,
           bounded ? "a finite number where visible > first" : "a finite number where visible > 0");
  reject("width", b, h, i, width,
         bounded ? "a finite positive number where visible > first" : "a finite positive number where visible > 0");
}

// packed sentences are one whose rows are those of all
template <class T>
void validate(const ForwardParams& p) {
  const bool packed = p.query_offsets != nullptr, bounded = p.first.data != nullptr;
  const int64_t rows = packed ? p.packed_rows : p.rows;
  if (rows == 0) return;
  static constexpr int32_t zero = 0;
  const View<const int32_t> first = bounded ? p.first : View<const int32_t>{&zero, 0, 0, 0};
  const auto *center = static_cast<const T*>(p.center.data), *width = static_cast<const T*>(p.width.data);
  const bool shared =
      p.center.head_stride == 0 && p.width.head_stride == 0 && p.visible.head_stride == 0 && first.head_stride == 0;
  for (int64_t b = 0; b < (packed ? 1 : p.batches); ++b) {
    for (int64_t h = 0; h < (shared ? 1 : p.heads); ++h) {
      const T* c = center + b * p.center.batch_stride + h * p.center.head_stride;
      const T* w = width + b * p.width.batch_stride + h * p.width.head_stride;
      const int32_t* v = p.visible.data + b * p.visible.batch_stride + h * p.visible.head_stride;
      const int32_t* f = first.data + b * first.batch_stride + h * first.head_stride;
      const int64_t c_step = p.center.row_stride, w_step = p.width.row_stride, v_step = p.visible.row_stride;
      const int64_t f_step = first.row_stride;
      bool bad = false;
      if (bounded)
        for (int64_t i = 0; i < rows; ++i) bad |= is_bad(v[i * v_step], f[i * f_step], c[i * c_step], w[i * w_step]);
      else
        for (int64_t i = 0; i < rows; ++i) bad |= is_bad(v[i * v_step], 0, c[i * c_step], w[i * w_step]);
      if (!bad) continue;
      for (int64_t i = 0; i < rows; ++i)
        if (is_bad(v[i * v_step], f[i * f_step], c[i * c_step], w[i * w_step]))
          reject_row(bounded, b, h, i, v[i * v_step], f[i * f_step], c[i * c_step], w[i * w_step]);
    }
  }
}

}  // namespace

void validate_rows(const ForwardParams& params) {
  params.scalar_type == ScalarType::float64 ? validate<double>(params) : validate<float>(params);
}

}  // namespace gma

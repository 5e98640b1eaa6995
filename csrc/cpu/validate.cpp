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
bool is_bad(int32_t visible, T center, T width) {
  constexpr T largest = std::numeric_limits<T>::max();
  const bool fine = (center >= -largest) & (center <= largest) & (width > 0) & (width <= largest);
  return (visible < 0) | ((visible > 0) & !fine);
}

template <class T>
void validate(const ForwardParams& p) {
  if (p.rows == 0) return;
  const auto *center = static_cast<const T*>(p.center.data), *width = static_cast<const T*>(p.width.data);
  const bool shared = p.center.head_stride == 0 && p.width.head_stride == 0 && p.visible.head_stride == 0;
  for (int64_t b = 0; b < p.batches; ++b) {
    for (int64_t h = 0; h < (shared ? 1 : p.heads); ++h) {
      const T* c = center + b * p.center.batch_stride + h * p.center.head_stride;
      const T* w = width + b * p.width.batch_stride + h * p.width.head_stride;
      const int32_t* v = p.visible.data + b * p.visible.batch_stride + h * p.visible.head_stride;
      const int64_t c_step = p.center.row_stride, w_step = p.width.row_stride, v_step = p.visible.row_stride;
      bool bad = false;
      for (int64_t i = 0; i < p.rows; ++i) bad |= is_bad(v[i * v_step], c[i * c_step], w[i * w_step]);
      if (!bad) continue;
      for (int64_t i = 0; i < p.rows; ++i) {
        if (!is_bad(v[i * v_step], c[i * c_step], w[i * w_step])) continue;
        if (v[i * v_step] < 0) reject("visible", b, h, i, v[i * v_step], "0 or more");
        if (is_bad<T>(1, c[i * c_step], 1))
          reject("center", b, h, i, c[i * c_step], "a finite number where visible > 0");
        reject("width", b, h, i, w[i * w_step], "a finite positive number where visible > 0");
      }
    }
  }
}

}  // namespace

void validate_rows(const ForwardParams& params) {
  params.scalar_type == ScalarType::float64 ? validate<double>(params) : validate<float>(params);
}

}  // namespace gma

// Tensors of the fuzzer in memory of their own: any element type and strides, surrounded by poison.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "../../../csrc/gaussian_attention.h"

namespace {

using gma::PriorKind;
using gma::ScalarType;
using std::vector;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::mt19937_64 random_engine;

int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_engine); }
bool chance(double p) { return std::bernoulli_distribution(p)(random_engine); }
double normal() { return std::normal_distribution<double>()(random_engine); }

int64_t bytes_of(ScalarType type) { return type == ScalarType::float64 ? 8 : type == ScalarType::float32 ? 4 : 2; }

double epsilon_of(ScalarType type) {
  switch (type) {
    case ScalarType::float64: return 0x1p-52;
    case ScalarType::float32: return 0x1p-23;
    case ScalarType::float16: return 0x1p-10;
    default: return 0x1p-7;
  }
}

double read_element(const unsigned char* at, ScalarType type) {
  if (type == ScalarType::float64) {
    double x;
    std::memcpy(&x, at, 8);
    return x;
  }
  uint32_t bits = 0;
  if (type == ScalarType::float16) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const double sign = half >> 15 ? -1 : 1;
    if (exponent == 31) return mantissa ? std::nan("") : sign * infinity;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
  }
  if (type == ScalarType::bfloat16) {
    uint16_t upper;
    std::memcpy(&upper, at, 2);
    bits = uint32_t(upper) << 16;
  } else {
    std::memcpy(&bits, at, 4);
  }
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

void write_element(unsigned char* at, ScalarType type, double value) {
  const float single = float(value);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  if (type == ScalarType::float64) {
    std::memcpy(at, &value, 8);
  } else if (type == ScalarType::float32) {
    std::memcpy(at, &bits, 4);
  } else if (type == ScalarType::bfloat16) {
    const uint16_t upper = uint16_t(bits >> 16);
    std::memcpy(at, &upper, 2);
  } else {
    // inputs are moderate: truncation to a normal or zero half is all that is needed
    const int exponent = int(bits >> 23 & 255) - 112;
    const uint16_t half = uint16_t((bits >> 31) << 15 | (exponent <= 0 ? 0 : exponent << 10 | (bits >> 13 & 1023)));
    std::memcpy(at, &half, 2);
  }
}

// [B, H, rows, columns] somewhere inside an allocation, of poison (0xff is NaN in every type)
struct Buffer {
  ScalarType type;
  int64_t sizes[4], strides[4], offset;
  vector<unsigned char> bytes;

  Buffer(ScalarType element, int64_t b, int64_t h, int64_t rows, int64_t columns, bool is_output)
      : type(element), sizes{b, h, rows, columns}, offset(is_output ? 64 : 0) {
    const int64_t row = columns + (columns > 1 && chance(0.5) ? pick(0, 9) : 0);
    const bool heads_inside = chance(0.5);
    const int64_t inner = heads_inside ? h : rows, outer = heads_inside ? rows : h;
    const int64_t plane = row * inner + (chance(0.3) ? pick(0, 5) : 0);
    strides[0] = plane * outer + (chance(0.3) ? pick(0, 5) : 0);
    strides[1] = heads_inside ? row : plane;
    strides[2] = heads_inside ? plane : row;
    strides[3] = 1;
    if (!is_output && chance(0.1)) strides[pick(0, 2)] = 0;
    int64_t last = -1;
    if (b * h * rows * columns > 0)
      last = (b - 1) * strides[0] + (h - 1) * strides[1] + (rows - 1) * strides[2] + columns - 1;
    bytes.assign(size_t((offset * 2 + last + 1) * bytes_of(type)), 0xff);
  }

  unsigned char* at(int64_t b, int64_t h, int64_t r, int64_t c) {
    return bytes.data() + (offset + b * strides[0] + h * strides[1] + r * strides[2] + c) * bytes_of(type);
  }
  double get(int64_t b, int64_t h, int64_t r, int64_t c) { return read_element(at(b, h, r, c), type); }

  template <class Visit>
  void for_each(Visit visit) {
    for (int64_t b = 0; b < sizes[0]; ++b)
      for (int64_t h = 0; h < sizes[1]; ++h)
        for (int64_t r = 0; r < sizes[2]; ++r)
          for (int64_t c = 0; c < sizes[3]; ++c) visit(b, h, r, c);
  }

  template <class Pointer>
  gma::View<Pointer> view() {
    void* start = bytes.data() + offset * bytes_of(type);
    return {static_cast<Pointer*>(start), strides[0], sizes[1] == 1 ? 0 : strides[1], strides[2]};
  }

  bool surroundings_intact() {
    vector<unsigned char> copy = bytes;
    for_each(
        [&](auto... index) { std::memset(copy.data() + (at(index...) - bytes.data()), 0xff, size_t(bytes_of(type))); });
    for (unsigned char byte : copy)
      if (byte != 0xff) return false;
    return true;
  }
};

}  // namespace

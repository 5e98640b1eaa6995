// From a call's dtype and head sizes, known at run time, to the kernel built for them.
#pragma once

#include <type_traits>

#include "launch.h"
#include "tile.h"

// a quick build, as the tests make, may leave the larger tiles out
#ifndef GMA_LARGEST_HEAD_TILE
#define GMA_LARGEST_HEAD_TILE 256
#endif

namespace gma {
namespace cuda {

template <class scalar_type, int size>
struct Instance {
  using scalar = scalar_type;
  static constexpr int head_tile = size;
};

template <class scalar, class Body>
std::string with_head_tile(int64_t size, const Body& body) {
  if (size <= 32) return body(Instance<scalar, 32>());
#if GMA_LARGEST_HEAD_TILE >= 64
  if (size <= 64) return body(Instance<scalar, 64>());
#endif
#if GMA_LARGEST_HEAD_TILE >= 128
  if (size <= 128) return body(Instance<scalar, 128>());
#endif
#if GMA_LARGEST_HEAD_TILE >= 256
  if (size <= 256) return body(Instance<scalar, 256>());
#endif
  return "head size " + std::to_string(size) + " has no CUDA kernel; expected at most " +
         std::to_string(GMA_LARGEST_HEAD_TILE);
}

// Calls body(Instance<scalar, head tile>) with the smallest tile that holds `size` columns.
template <class Body>
std::string with_instance(ScalarType scalar_type, int64_t size, const Body& body) {
  switch (scalar_type) {
    case ScalarType::float32: return with_head_tile<float>(size, body);
    case ScalarType::float16: return with_head_tile<float16>(size, body);
    case ScalarType::bfloat16: return with_head_tile<bfloat16>(size, body);
    case ScalarType::float64: break;
  }
  return "float64 has no CUDA kernel; expected float32, float16 or bfloat16";
}

// Calls body(std::bool_constant<value>).
template <class Body>
std::string with_bool(bool value, const Body& body) {
  return value ? body(std::true_type()) : body(std::false_type());
}

// Why a call cannot be served, or "".
inline std::string refuse(const ForwardParams& p) {
  if (p.rows * p.group < int64_t(1) << 30) return "";
  return "T times the heads that share one of keys is " + std::to_string(p.rows * p.group) +
         "; the CUDA kernels serve less than 2**30, split the rows";
}

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace cuda
}  // namespace gma

// Copies between the caller's matrices and scratch: conversion, scaling, transposition, padding.
#pragma once

#include "simd.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

template <class T>
constexpr int64_t whole_vectors(int64_t columns) {
  return (columns + lanes<T> - 1) / lanes<T> * lanes<T>;
}

// A row stride that is an odd number of vectors, so that columns spread over the cache's sets.
template <class T>
constexpr int64_t spread_stride(int64_t columns) {
  const int64_t vectors = (columns + lanes<T> - 1) / lanes<T>;
  return (vectors | 1) * lanes<T>;
}

// to[0 .. count) = factor * from[0 .. count), as far as whole vectors go; returns how far. Four vectors at a time: rows
// often have no more, and for so few a loop costs as much as its body.
template <class From, class To, class T>
GMA_INLINE int64_t copy_vectors(const From* from, int64_t count, T factor, To* to) {
  constexpr int n = lanes<T>;
  int64_t c = 0;
  for (; c + 4 * n <= count; c += 4 * n)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) store(to + c + v * n, load(from + c + v * n) * factor);
  for (; c + n <= count; c += n) store(to + c, load(from + c) * factor);
  return c;
}

// to[rows, columns padded with 0 to whole vectors] = factor * from[rows, columns]
template <class E, class T>
void pack_rows(const E* from, int64_t from_stride, int64_t rows, int64_t columns, T factor, T* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    const int64_t c = copy_vectors(from, columns, factor, to);
    if (c < columns) store(to + c, load_first(from + c, columns - c) * factor);
  }
}

// to[columns, rows padded to whole vectors] = factor * from[rows, columns]^T; padding is 0
template <class E, class T>
void pack_transposed(const E* from, int64_t from_stride, int64_t rows, int64_t columns, T factor, T* to,
                     int64_t to_stride) {
  constexpr int n = lanes<T>;
  for (int64_t r = 0; r < rows; r += n) {
    const int height = rows - r < n ? int(rows - r) : n;
    for (int64_t c = 0; c < columns; c += n) {
      const E* corner = from + r * from_stride + c;
      const int64_t width = columns - c < n ? columns - c : n;
      Vector<T> square[n];
      if (height == n && width == n) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) square[i] = load(corner + i * from_stride) * factor;
      } else {
        for (int i = 0; i < n; ++i)
          square[i] =
              i < height
                  ? (width == n ? load(corner + i * from_stride) : load_first(corner + i * from_stride, width)) * factor
                  : Vector<T>{};
      }
      transpose<T>(square);
      if (width == n) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) store(to + (c + i) * to_stride + r, square[i]);
      } else {
        for (int i = 0; i < width; ++i) store(to + (c + i) * to_stride + r, square[i]);
      }
    }
  }
}

// to[columns] = factor * from[columns]; from is padded to whole vectors
template <class E, class T>
GMA_INLINE void unpack_row(const T* from, int64_t columns, T factor, E* to) {
  const int64_t c = copy_vectors(from, columns, factor, to);
  if (c < columns) store_first(to + c, load(from + c) * factor, columns - c);
}

template <class T>
GMA_INLINE void fill_zero(T* to, int64_t count) {
  std::memset(to, 0, size_t(count) * sizeof(T));
}

// Hands out aligned pieces of a block of memory; on a null block it only measures.
struct Arena {
  uintptr_t base;
  int64_t used = 0;

  template <class T>
  GMA_INLINE T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(base + used);
    used += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
};

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

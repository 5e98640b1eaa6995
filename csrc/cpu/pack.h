// Copies between the caller's matrices and scratch: conversion, scaling, transposition, padding.
#pragma once

#include "operand.h"

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

// to[rows, columns] = from[rows, columns], as the left operand of a product over columns
template <class O, class E>
void pack_left(const E* from, int64_t from_stride, int64_t rows, int64_t columns, O* to, int64_t to_stride) {
  if constexpr (is_pair<O>) {
    for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
      to[operands<O>(columns) - 1] = {};
      std::memcpy(to, from, size_t(columns) * sizeof(E));
    }
  } else {
    pack_rows(from, from_stride, rows, columns, O(1), to, to_stride);
  }
}

// Words of a row, the first n; the others are 0.
GMA_INLINE Words load_words(const BFloat16* from, int64_t n) {
  Words words{};
  if (n >= int64_t(sizeof words / 2)) std::memcpy(&words, from, sizeof words);
  else
    for (int64_t i = 0; i < n; ++i) words[i] = from[i].bits;
  return words;
}

// to[operands(rows), columns padded to whole vectors] = from[rows, columns], as the right operand of a product over
// rows. Pairs have 0 in place of the first `hidden` rows, which may hold anything, and behind the last.
template <class O, class E>
void pack_right(const E* from, int64_t from_stride, int64_t rows, int64_t columns, int64_t hidden, O* to,
                int64_t to_stride) {
  if constexpr (is_pair<O>) {
    for (int64_t r = 0; r < rows; r += 2, from += 2 * from_stride, to += to_stride)
      for (int64_t c = 0; c < columns; c += lanes<float>)
        store_pairs(to + c, load_words(from + c, r >= hidden ? columns - c : 0),
                    load_words(from + from_stride + c, r + 1 >= hidden && r + 1 < rows ? columns - c : 0));
  } else {
    pack_rows(from, from_stride, rows, columns, O(1), to, to_stride);
  }
}

// The vector of operands with which `count` elements of a row begin; what is behind them is 0.
template <class O, class E, class T>
GMA_INLINE Vector<T> load_operands(const E* from, int64_t count, T factor) {
  if constexpr (is_pair<O>) {
    Vector<T> pairs{};
    std::memcpy(&pairs, from, size_t(count) * sizeof(E));
    return pairs;
  } else {
    return (count == lanes<T> ? load(from) : load_first(from, count)) * factor;
  }
}

// to[operands(columns), rows padded to whole vectors] = factor * from[rows, columns]^T, as the right operand of a
// product over columns; padding is 0. factor: see factor_of_operand
template <class O, class E, class T>
void pack_transposed(const E* from, int64_t from_stride, int64_t rows, int64_t columns, T factor, O* to,
                     int64_t to_stride) {
  constexpr int n = lanes<T>;
  constexpr int64_t step = n * elements_per<O>;
  for (int64_t r = 0; r < rows; r += n) {
    const int height = rows - r < n ? int(rows - r) : n;
    for (int64_t c = 0; c < columns; c += step) {
      const E* corner = from + r * from_stride + c;
      O* place = to + c / elements_per<O> * to_stride + r;
      const int64_t count = columns - c < step ? columns - c : step;
      Vector<T> square[n];
      if (height == n && count == step) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) square[i] = load_operands<O>(corner + i * from_stride, step, factor);
      } else {
        for (int i = 0; i < n; ++i)
          square[i] = i < height ? load_operands<O>(corner + i * from_stride, count, factor) : Vector<T>{};
      }
      transpose<T>(square);
      if (count == step) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) store(place + i * to_stride, square[i]);
      } else {
        for (int i = 0; i < operands<O>(count); ++i) store(place + i * to_stride, square[i]);
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

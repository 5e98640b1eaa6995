// The matrix product that every kernel is made of: a group of a few rows, accumulated in registers.
#pragma once

#include "simd.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// accumulators, one vector of each operand and a temporary fill the register file
#if GMA_VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr int group_rows = 12;
#else
constexpr int group_rows = 6;
#endif
constexpr int group_vectors = 2;

// Left operands and tiles of scores share one row stride, so that all rows of a group are at constant
// distances of one pointer. It is an odd number of vectors, to spread the rows over the cache.
constexpr int tile_columns = 256;
template <class T>
constexpr int tile_stride = tile_columns + lanes<T>;

// Sums are made of chains of this many terms: a longer chain would lose digits, and sooner without fused multiply-add,
// where every term is rounded twice.
#if defined(__FMA__) || defined(__aarch64__)
constexpr int64_t summed_depth = 64;
#else
constexpr int64_t summed_depth = 32;
#endif

enum class Left { as_stored, transposed };

// The distance from one column of A to the next.
template <Left left, class T>
constexpr int64_t depth_step = left == Left::as_stored ? 1 : tile_stride<T>;

// C[rows, vectors] (+)= A[rows, depth] B[depth, vectors]
template <Left left, int rows, int vectors, class T>
void multiply_block(const T* a, const T* b, int64_t b_stride, int64_t depth, T* c, int64_t c_stride, bool accumulate) {
  constexpr int64_t row_step = left == Left::as_stored ? tile_stride<T> : 1;
  constexpr int n = lanes<T>;
  Vector<T> sum[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[r][v] = Vector<T>{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector<T> right[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) right[v] = load(b + v * n);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[r][v] += a[r * row_step] * right[v];
    a += depth_step<left, T>;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      T* at = c + r * c_stride + v * n;
      store(at, accumulate ? load(at) + sum[r][v] : sum[r][v]);
    }
}

template <Left left, int vectors, class T, size_t... rows_minus_one>
GMA_INLINE void multiply_rows(std::index_sequence<rows_minus_one...>, int rows, const T* a, const T* b,
                              int64_t b_stride, int64_t depth, T* c, int64_t c_stride, bool accumulate) {
  using Block = void (*)(const T*, const T*, int64_t, int64_t, T*, int64_t, bool);
  static constexpr Block blocks[] = {multiply_block<left, int(rows_minus_one) + 1, vectors, T>...};
  blocks[rows - 1](a, b, b_stride, depth, c, c_stride, accumulate);
}

// C[rows, columns] (+)= A[rows, depth] B[depth, columns], 1 <= rows <= group_rows. A is in a tile,
// transposed or not; columns are rounded up to whole vectors, which B and C must have room for.
template <Left left, class T>
void multiply(int rows, int64_t columns, int64_t depth, const T* a, const T* b, int64_t b_stride, T* c,
              int64_t c_stride, bool accumulate) {
  constexpr auto choices = std::make_index_sequence<group_rows>();
  constexpr int step = group_vectors * lanes<T>;
  const int64_t terms = depth < summed_depth ? depth : summed_depth;
  int64_t column = 0;
  for (; columns - column > lanes<T>; column += step)
    multiply_rows<left, group_vectors>(choices, rows, a, b + column, b_stride, terms, c + column, c_stride, accumulate);
  if (column < columns)
    multiply_rows<left, 1>(choices, rows, a, b + column, b_stride, terms, c + column, c_stride, accumulate);
  if (terms < depth)
    multiply<left>(rows, columns, depth - terms, a + terms * depth_step<left, T>, b + terms * b_stride, b_stride, c,
                   c_stride, true);
}

// Groups of nearly equal size.
struct Groups {
  int64_t count, size;
};
GMA_INLINE Groups split_into_groups(int64_t rows) {
  const int64_t count = (rows + group_rows - 1) / group_rows;
  return {count, count > 0 ? (rows + count - 1) / count : 0};
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

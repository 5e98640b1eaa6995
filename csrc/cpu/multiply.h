// The matrix product that every kernel is made of: a group of a few rows, accumulated in registers.
#pragma once

#include "operand.h"

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
template <class O>
constexpr int tile_stride = tile_columns + lanes<Arithmetic<O>>;

// Sums are made of chains of this many terms: a longer chain would lose digits, and sooner without fused multiply-add,
// where every term is rounded twice.
#if defined(__FMA__) || defined(__aarch64__)
constexpr int64_t summed_depth = 64;
#else
constexpr int64_t summed_depth = 32;
#endif
// digits that products of 16-bit numbers do not have
template <class O>
constexpr int64_t chain_depth = is_pair<O> ? tile_columns / 2 : summed_depth;

enum class Left { as_stored, transposed };

// The distance from one column of A to the next.
template <Left left, class O>
constexpr int64_t depth_step = left == Left::as_stored ? 1 : tile_stride<O>;

// C[rows, vectors] (+)= factor * A[rows, depth] B[depth, vectors]; of numbers, the factor is 1
template <Left left, int rows, int vectors, class O, class T = Arithmetic<O>>
void multiply_block(const O* a, const O* b, int64_t b_stride, int64_t depth, T* c, int64_t c_stride, bool accumulate,
                    T factor) {
  constexpr int64_t row_step = left == Left::as_stored ? tile_stride<O> : 1;
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
      for (int v = 0; v < vectors; ++v) sum[r][v] = add_product(sum[r][v], a[r * row_step], right[v]);
    a += depth_step<left, O>;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      T* at = c + r * c_stride + v * n;
      if constexpr (is_pair<O>) sum[r][v] *= factor;
      store(at, accumulate ? load(at) + sum[r][v] : sum[r][v]);
    }
}

template <Left left, int vectors, class O, class T, size_t... rows_minus_one>
GMA_INLINE void multiply_rows(std::index_sequence<rows_minus_one...>, int rows, const O* a, const O* b,
                              int64_t b_stride, int64_t depth, T* c, int64_t c_stride, bool accumulate, T factor) {
  using Block = void (*)(const O*, const O*, int64_t, int64_t, T*, int64_t, bool, T);
  static constexpr Block blocks[] = {multiply_block<left, int(rows_minus_one) + 1, vectors, O>...};
  blocks[rows - 1](a, b, b_stride, depth, c, c_stride, accumulate, factor);
}

// C[rows, columns] (+)= A[rows, depth] B[depth, columns], 1 <= rows <= group_rows. A is in a tile,
// transposed or not; columns are rounded up to whole vectors, which B and C must have room for. The depth counts
// operands. factor: of the product, see factor_of_product.
template <Left left, class O, class T = Arithmetic<O>>
void multiply(int rows, int64_t columns, int64_t depth, const O* a, const O* b, int64_t b_stride, T* c,
              int64_t c_stride, bool accumulate, T factor = 1) {
  constexpr auto choices = std::make_index_sequence<group_rows>();
  constexpr int step = group_vectors * lanes<T>;
  const int64_t terms = depth < chain_depth<O> ? depth : chain_depth<O>;
  int64_t column = 0;
  for (; columns - column > lanes<T>; column += step)
    multiply_rows<left, group_vectors>(choices, rows, a, b + column, b_stride, terms, c + column, c_stride, accumulate,
                                       factor);
  if (column < columns)
    multiply_rows<left, 1>(choices, rows, a, b + column, b_stride, terms, c + column, c_stride, accumulate, factor);
  if (terms < depth)
    multiply<left>(rows, columns, depth - terms, a + terms * depth_step<left, O>, b + terms * b_stride, b_stride, c,
                   c_stride, true, factor);
}

// Groups of nearly equal size; of pairs, but for the last an even one.
struct Groups {
  int64_t count, size;
};
template <class O>
GMA_INLINE Groups split_into_groups(int64_t rows) {
  const int64_t count = (rows + group_rows - 1) / group_rows;
  return {count, count > 0 ? operands<O>((rows + count - 1) / count) * elements_per<O> : 0};
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

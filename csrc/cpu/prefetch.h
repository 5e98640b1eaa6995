// Prefetching: memory that will be needed soon is requested between the computations on other memory.
#pragma once

#include "view.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

enum class Access { read, write };

// Prefetches memory, four cache lines at a time. A few lines too many, which often belong to the next head, cost less
// than a loop that ends after one or two.
template <Access access>
GMA_INLINE void prefetch(const void* memory, int64_t bytes) {
  const char* at = static_cast<const char*>(memory);
  do {
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) __builtin_prefetch(at + 64 * line, access == Access::write);
    at += 256;
    bytes -= 256;
  } while (bytes > 0);
}

// Rows of one head's matrix, each prefetched between the computations on other rows, so that it arrives meanwhile.
template <Access access>
class PrefetchedRows {
 public:
  PrefetchedRows() = default;
  template <class E, class View>
  GMA_INLINE PrefetchedRows(E, const View& view, int64_t b, int64_t h, int64_t rows, int64_t columns)
      : first_(reinterpret_cast<const char*>(row_of<E>(view, b, h, 0))),
        stride_(view.row_stride * int64_t(sizeof(E))),
        bytes_(columns * int64_t(sizeof(E))),
        rows_(rows) {}

  GMA_INLINE void prefetch(int64_t i) const {
    if (i < rows_) gma::GMA_SIMD_LEVEL::prefetch<access>(first_ + i * stride_, bytes_);
  }

 private:
  const char* first_ = nullptr;
  int64_t stride_ = 0, bytes_ = 0, rows_ = 0;
};

// Moves on to the next head, which is the thread's next task unless heads are few. False after the last.
GMA_INLINE bool next_head(const ForwardParams& p, int64_t& b, int64_t& h) {
  if (++h < p.heads) return true;
  h = 0;
  return ++b < p.batches;
}

// The inputs of the next head, which the thread usually reads next.
template <class E>
struct PrefetchedHead {
  PrefetchedRows<Access::read> query, key, value;

  GMA_INLINE PrefetchedHead(const ForwardParams& p, int64_t b, int64_t h) {
    if (!next_head(p, b, h)) return;
    query = {E(), p.query, b, h, p.rows, p.head_size};
    const int64_t of_keys = p.group == 1 ? h : h / p.group;
    key = {E(), p.key, b, of_keys, p.keys, p.head_size};
    value = {E(), p.value, b, of_keys, p.keys, p.value_size};
  }
};

// Decoding is as fast as memory is read. Rows are prefetched this many ahead of their use.
constexpr int64_t rows_ahead = 32;

// At row j of `count`: prefetches the row `rows_ahead` further on. Past the last, that is one of `next`.
template <class E>
GMA_INLINE void prefetch_ahead(MatrixRows<E> rows, int64_t j, int64_t count, MatrixRows<E> next, int64_t columns) {
  const int64_t ahead = j + rows_ahead;
  prefetch<Access::read>(ahead < count ? rows[ahead] : next[ahead - count], columns * int64_t(sizeof(E)));
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

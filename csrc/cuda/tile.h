// Tiles of rows in shared memory: how they lie there, and how they get there.
#pragma once

#include "async_copy.h"
#include "place.h"
#include "scalar.h"

namespace gma {
namespace cuda {

constexpr int fragment_rows = 16;  // of the left operand of a tensor core

GMA_DEVICE int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
GMA_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

// Rows of head_tile columns, one after the other, the 16-byte chunks of each in an order that differs from row to row:
// what eight lanes read at one column of eight rows lies in different banks.
template <class scalar, int head_tile>
struct Tile {
  static constexpr bool is_wide = sizeof(scalar) == 4;
  static constexpr int chunk = 16 / sizeof(scalar), chunks = head_tile / chunk;

  // exclusive-ored to the number of a chunk
  static __device__ __forceinline__ int order(int row) { return chunks >= 8 ? row & 7 : row >> 1 & 3; }

  // of an element; constant columns past the first chunk cost an exclusive or
  static __device__ __forceinline__ int offset(int row, int column) {
    return row * head_tile + ((column / chunk ^ order(row)) * chunk | column % chunk);
  }
};

// One thread's part in copying the tiles of `count` rows, one after the other: the same chunk of every few rows.
// stacked: the rows may be those of several heads (see place.h), at no constant distance.
template <class scalar, int head_tile, int count, int threads, bool stacked = false>
class TileCopy {
  using T = Tile<scalar, head_tile>;
  static constexpr int at_once = threads / T::chunks, rounds = count / at_once;
  static constexpr int element = static_cast<int>(sizeof(scalar));
  static_assert(threads % T::chunks == 0 && count % at_once == 0);

 public:
  // Begins with row `first`.
  __device__ __forceinline__ TileCopy(const StackRows<scalar>& rows, int first) : rows_(rows), next_(first + row()) {
    const int column = chunk() * T::chunk, rest = rows.columns - column;
    bytes_ = (rest <= 0 ? 0 : rest < T::chunk ? rest : T::chunk) * element;
    // what is not read must be an address all the same
    rows_.data += rest > 0 ? column : 0;
    if constexpr (!stacked) source_ = rows_[next_];
    target_ = T::offset(row(), column) * element;
  }

  // The next `count` rows, of which the first `left` are wanted but for the first `hidden`; the others and columns past
  // the last become 0 and are not read. Complete after wait_for_copies and a barrier.
  __device__ __forceinline__ void load(scalar* to, int left, int hidden = 0) {
    if (count > left || hidden > 0 || !rows_.aligned)
      return load_wanted(to, [&](int at) { return at >= hidden && at < left; });
    const scalar* from = source_;
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      copy_async(reinterpret_cast<char*>(to) + target(round), stacked ? source(round) : from, bytes_);
      from += at_once * rows_.stride;
    }
    advance();
  }

  // The same with the rows that are wanted(row); slower.
  template <class Wanted>
  __device__ __forceinline__ void load_wanted(scalar* to, const Wanted& wanted) {
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const scalar* from = source(round);
      const int bytes = wanted(row() + round * at_once) ? bytes_ : 0;
      scalar* to_chunk = reinterpret_cast<scalar*>(reinterpret_cast<char*>(to) + target(round));
      if (rows_.aligned) {
        copy_async(to_chunk, from, bytes);
        continue;
      }
#pragma unroll
      for (int i = 0; i < T::chunk; ++i) to_chunk[i] = i < bytes / element ? from[i] : scalar{};
    }
    advance();
  }

 private:
  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / T::chunks; }
  static __device__ __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % T::chunks; }

  // In bytes. The order of chunks comes round every eight rows.
  __device__ __forceinline__ int target(int round) const {
    const int at = round * at_once;
    return at_once % 8 == 0 ? target_ + at * head_tile * element : T::offset(row() + at, chunk() * T::chunk) * element;
  }

  // The chunk of the next tile that it copies.
  __device__ __forceinline__ const scalar* source(int round) const {
    if constexpr (stacked) return rows_[next_ + round * at_once];
    else return source_ + round * at_once * rows_.stride;
  }
  __device__ __forceinline__ void advance() {
    if constexpr (stacked) next_ += count;
    else source_ += count * rows_.stride;
  }

  StackRows<scalar> rows_;  // from the thread's chunk on
  int next_;                // its first row of the next tile; where rows are not stacked their address is kept:
  const scalar* source_;
  int bytes_;   // of that chunk that there are
  int target_;  // where it goes, in bytes
};

struct alignas(16) Chunk {
  uint32_t words[4];
};

// 16 bytes of a row from `column` on, 0 past the last of its columns. Nothing waits for it before it is used.
template <class scalar>
union RawChunk {
  Chunk chunk;
  scalar element[16 / sizeof(scalar)];
};

template <class scalar>
GMA_DEVICE RawChunk<scalar> load_raw(const scalar* row, int column, int columns, bool aligned) {
  constexpr int count = 16 / sizeof(scalar);
  RawChunk<scalar> loaded;
  if (aligned && column + count <= columns) {
    loaded.chunk = *reinterpret_cast<const Chunk*>(row + column);
    return loaded;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) loaded.element[i] = column + i < columns ? row[column + i] : scalar{};
  return loaded;
}

template <class scalar, int count>
GMA_DEVICE void load_chunk(float (&x)[count], const scalar* row, int column, int columns, bool aligned) {
  const RawChunk<scalar> loaded = load_raw(row, column, columns, aligned);
#pragma unroll
  for (int i = 0; i < count; ++i) x[i] = to_float(loaded.element[i]);
}

// A lane's part of a fragment (see mma.h) to rows first + g and first + g + 8, of those below `end`.
template <class scalar, int columns>
GMA_DEVICE void store_fragment(const float (&x)[columns / 8][4], const StackRows<scalar>& to, int first, int end,
                               int first_column) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + g + 8 * r;
    if (row >= end) continue;
    scalar* target = to[row];
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      const int column = first_column + 8 * n + 2 * t;
      const float low = x[n][2 * r], high = x[n][2 * r + 1];
      if constexpr (sizeof(scalar) == 2) {
        if (to.aligned && column + 1 < to.columns) {
          *reinterpret_cast<uint32_t*>(target + column) = pack<scalar>(low, high);
          continue;
        }
      }
      if (column < to.columns) round_to(target[column], low);
      if (column + 1 < to.columns) round_to(target[column + 1], high);
    }
  }
}

}  // namespace cuda
}  // namespace gma

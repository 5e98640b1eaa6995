// Where a block of threads works: on rows, or on keys, of one stack.
//
// A stack are the query rows of all heads that share one head of keys, in one sentence: the first row of each of these
// heads, then the second of each. So a tile of keys, once read, serves them all. In a plain call a stack is a head.
#pragma once

#include "arguments.h"

namespace gma {
namespace cuda {

struct Place {
  int batch;                   // in memory, where packed sentences are one
  int head, group, key_head;   // head: the first of the group that uses key_head
  int64_t flat_head;           // sentence * H + head
  int64_t stack;               // sentence * H_kv + key_head, if sentences are not packed
  int64_t first_group;         // the stack's first group of rows among all, see backward.h
  int rows, keys;              // of the stack
  int row_offset, key_offset;  // where a packed sentence begins
  int tile, part;              // see find_place
};

// Kernels for plain calls read these among their parameters whenever they need them, and keep no registers for them.
template <bool general>
GMA_DEVICE int rows_in(const Call& call, const Place& place) {
  return general ? place.rows : call.rows;
}
template <bool general>
GMA_DEVICE int keys_in(const Call& call, const Place& place) {
  return general ? place.keys : call.keys;
}

constexpr int group_rows = 16;

// Tiles of `size` items, of packed sentences that have `all` items together. Sentence b has those from
// packed_begin(offsets[b], size, b) on: at least as many as it needs, and the next one's begin behind them.
inline __host__ __device__ int64_t packed_tiles(int64_t all, int size, int sentences) {
  return sentences == 0 ? 0 : all / size + sentences;
}
GMA_DEVICE int packed_begin(int64_t offset, int size, int sentence) {
  return static_cast<int>(offset / size) + sentence;
}

// An offset that leads out of the tensor is cut off.
GMA_DEVICE int bounded(int x, int least, int most) { return x < least ? least : x < most ? x : most; }

// The sentence that a tile belongs to. Each has `each` items for one that the offsets count, of `all`.
GMA_DEVICE int find_sentence(const int32_t* offsets, int sentences, int all, int each, int size, int tile) {
  int low = 0, high = sentences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    const int64_t offset = static_cast<int64_t>(bounded(offsets[middle], 0, all)) * each;
    if (packed_begin(offset, size, middle) <= tile) low = middle;
    else high = middle - 1;
  }
  return low;
}

enum class Of { rows, keys };

// What the block is to do: a tile of `size` rows or keys of a stack, of which it does one of `parts` parts. Tiles of
// one stack are neighbours: blocks that run at the same time share keys and values in the L2 cache. A tile of packed
// sentences may lie past the end of its own.
template <bool general, Of of>
GMA_DEVICE Place find_place(const Call& call, int size, int parts) {
  const int items = of == Of::keys ? call.keys : general ? call.rows * call.group : call.rows;
  const int key_heads = general ? call.heads / call.group : call.heads;
  unsigned tiles = static_cast<unsigned>((items + size - 1) / size);
  if constexpr (general)
    if (call.query_offsets != nullptr) tiles = static_cast<unsigned>(packed_tiles(items, size, call.sentences));
  tiles *= static_cast<unsigned>(parts);
  const unsigned flat = blockIdx.x / tiles, index = blockIdx.x % tiles;
  Place place{};
  place.batch = static_cast<int>(flat / static_cast<unsigned>(key_heads));
  place.key_head = static_cast<int>(flat % static_cast<unsigned>(key_heads));
  place.group = general ? call.group : 1;
  place.head = place.key_head * place.group;
  place.stack = flat;
  place.flat_head = static_cast<int64_t>(flat) * place.group;
  place.rows = general ? call.rows * call.group : call.rows;
  place.keys = call.keys;
  place.first_group = place.stack * ((place.rows + group_rows - 1) / group_rows);
  place.tile = static_cast<int>(index / static_cast<unsigned>(parts));
  place.part = static_cast<int>(index % static_cast<unsigned>(parts));
  if constexpr (general)
    if (call.query_offsets != nullptr) {
      const int each = of == Of::keys ? 1 : call.group;
      const int b = find_sentence(of == Of::keys ? call.key_offsets : call.query_offsets, call.sentences,
                                  of == Of::keys ? call.keys : call.rows, each, size, place.tile);
      place.first_group = place.key_head * packed_tiles(place.rows, group_rows, call.sentences);
      place.row_offset = bounded(call.query_offsets[b], 0, call.rows);
      place.rows = (bounded(call.query_offsets[b + 1], place.row_offset, call.rows) - place.row_offset) * call.group;
      place.key_offset = bounded(call.key_offsets[b], 0, call.keys);
      place.keys = bounded(call.key_offsets[b + 1], place.key_offset, call.keys) - place.key_offset;
      place.first_group += packed_begin(static_cast<int64_t>(place.row_offset) * call.group, group_rows, b);
      place.tile -=
          packed_begin(static_cast<int64_t>(of == Of::keys ? place.key_offset : place.row_offset) * each, size, b);
      place.flat_head = static_cast<int64_t>(b) * call.heads + place.head;
    }
  return place;
}

// How many blocks of threads that takes.
inline int64_t count_blocks(const ForwardParams& p, Of of, int size, int64_t parts) {
  const int64_t items = of == Of::keys ? p.keys : p.rows * p.group, key_heads = p.heads / p.group;
  const int64_t tiles = p.query_offsets != nullptr ? packed_tiles(items, size, static_cast<int>(p.batches))
                                                   : p.batches * ((items + size - 1) / size);
  return key_heads * tiles * parts;
}

// Which head a row of the stack belongs to, counted from place.head, and which of its rows it is.
struct RowOfHead {
  int head, row;
};
GMA_DEVICE RowOfHead unstack(int row, int group) {
  const unsigned x = static_cast<unsigned>(row), heads = static_cast<unsigned>(group);
  return {static_cast<int>(x % heads), static_cast<int>(x / heads)};
}

template <class T>
GMA_DEVICE T* at_row(const View<T>& view, const Place& place, int row) {
  const RowOfHead at = unstack(row, place.group);
  return view.data + place.batch * view.batch_stride + (place.head + at.head) * view.head_stride +
         static_cast<int64_t>(place.row_offset + at.row) * view.row_stride;
}

// The rows of a stack, or the keys of a head.
template <class scalar>
struct StackRows {
  scalar* data;
  int64_t stride, head_stride;
  int group, columns;
  bool aligned;

  __device__ __forceinline__ scalar* operator[](int row) const {
    const RowOfHead at = unstack(row, group);
    return data + at.row * stride + at.head * head_stride;
  }
};

template <class scalar>
GMA_DEVICE StackRows<scalar> rows_of(const Matrix& matrix, const Place& place) {
  scalar* data = static_cast<scalar*>(matrix.data) + place.batch * matrix.batch_stride +
                 place.head * matrix.head_stride + place.row_offset * matrix.row_stride;
  return {data, matrix.row_stride, matrix.head_stride, place.group, matrix.columns, matrix.aligned};
}

template <class scalar>
GMA_DEVICE StackRows<scalar> keys_of(const Matrix& matrix, const Place& place) {
  scalar* data = static_cast<scalar*>(matrix.data) + place.batch * matrix.batch_stride +
                 place.key_head * matrix.head_stride + place.key_offset * matrix.row_stride;
  return {data, matrix.row_stride, 0, 1, matrix.columns, matrix.aligned};
}

}  // namespace cuda
}  // namespace gma

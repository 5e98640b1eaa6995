// Backward: five matrix products for every tile of rows by keys, and one exponential for every weight.
//
// A task owns a chunk of the rows of one head and takes them in blocks. Each block walks over the tiles of keys twice.
// The first walk computes and keeps the weights and their gradients. After it delta = sum_j(beta dbeta) is known; taken
// from these very numbers, instead of from grad_context.context, it makes ds exactly 0 where it should be. For the same
// reason the exponentials are divided by their own sum. (The forward's logsumexp brings that sum near 1, and in a
// one-hot row to exactly 1, provided that it was computed from the same scores to the last bit.) The second walk adds
// up all gradients. Those of keys and values are sums over the chunks, added in order afterwards.
#pragma once

#include "backward_block.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// Packs keys and values `seen` of a tile of one head of them; columns before them, to the tile's first, may be
// anything.
template <class E>
void pack_keys(const BackwardParams& p, const BackwardScratch<E>& s, int64_t b, int64_t h, int64_t tile,
               KeyRange seen) {
  using T = Arithmetic<E>;
  using O = Operand<E>;
  const int64_t first_key = tile * backward_tile_keys;
  const int64_t keys = clamp_to(seen.end - first_key, backward_tile_keys);
  const int64_t key_size = operands<O>(p.head_size), value_size = operands<O>(p.value_size);
  O* packed = s.keys + first_key / elements_per<O> * s.key_stride;
  pack_right(row_of<E>(p.key, b, h, first_key), p.key.row_stride, keys, p.head_size, seen.begin - first_key, packed,
             s.key_stride);
  O* transposed = s.keys_transposed + tile * key_size * s.tile_row_stride;
  if constexpr (is_pair<O>)
    pack_transposed(row_of<E>(p.key, b, h, first_key), p.key.row_stride, keys, p.head_size, T(1), transposed,
                    s.tile_row_stride);
  else  // from the copy, which is in the L1 cache: the caller's rows are often so far apart that they evict each other
    pack_transposed(packed, s.key_stride, keys, p.head_size, T(p.scale), transposed, s.tile_row_stride);
  pack_transposed(row_of<E>(p.value, b, h, first_key), p.value.row_stride, keys, p.value_size, T(1),
                  s.values_transposed + tile * value_size * s.tile_row_stride, s.tile_row_stride);
}

// h: of keys
template <class E, class T>
void write_key_gradients(const BackwardParams& p, int64_t b, int64_t h, const KeyGradients<T>& gradients) {
  for (int64_t k = 0; k < p.keys; ++k) {
    unpack_row(gradients.key + k * gradients.key_stride, p.head_size, T(1), row_of<E>(p.grad_key, b, h, k));
    unpack_row(gradients.value + k * gradients.value_stride, p.value_size, T(1), row_of<E>(p.grad_value, b, h, k));
  }
}

template <class T>
void write_zeros(const BackwardParams& p, const KeyGradients<T>& gradients, int64_t begin, int64_t end) {
  for (int64_t key = begin; key < end; ++key) {
    fill_zero(gradients.key + key * gradients.key_stride, whole_vectors<T>(p.head_size));
    fill_zero(gradients.value + key * gradients.value_stride, whole_vectors<T>(p.value_size));
  }
}

// Rows first_row .. end_row of all heads that share a head of keys. center, width: their gradients, [H, all rows].
// Returns the keys whose gradients were written.
template <class E, class T = Arithmetic<E>>
KeyRange backward_chunk(const BackwardParams& p, int64_t b, int64_t key_head, int64_t first_row, int64_t end_row,
                        const BackwardScratch<E>& s, const KeyGradients<T>& gradients, T* center, T* width) {
  const int64_t first_head = key_head * p.group, end_head = first_head + p.group;
  KeyRange all{0, 0};
  for (int64_t h = first_head; h < (shares_rows(p) ? first_head + 1 : end_head); ++h)
    for (int64_t i = first_row; i < end_row; ++i) {
      KeyRange seen{first_of(p, b, h, i), visible_of(p, b, h, i)};
      if (is_narrowed(p)) {
        const Row<T> row = make_row<E>(p, b, h, i);
        seen = {row.first, row.visible};
      }
      all.join(seen);
    }
  for (int64_t tile = all.begin / backward_tile_keys; tile * backward_tile_keys < all.end; ++tile)
    pack_keys(p, s, b, key_head, tile, all);

  // the first block overwrites the gradients of the keys it sees; those of other keys start from 0
  KeyRange written{0, 0};
  for (int64_t h = first_head; h < end_head; ++h)
    for (int64_t row = first_row; row < end_row; row += backward_block_rows) {
      const int64_t count = clamp_to(end_row - row, backward_block_rows);
      const BackwardBlock<E> block(p, s, b, h, row, count);
      const bool accumulate = !written.empty();
      if (accumulate && !block.keys.empty()) {
        write_zeros(p, gradients, block.keys.begin, written.begin);
        write_zeros(p, gradients, written.end, block.keys.end);
      }
      written.join(block.keys);
      PriorSums<T> sums[backward_block_rows] = {};
      fill_zero(s.weight_sum, s.sums_rows());
      fill_zero(s.grad_sum, s.sums_rows());
      for (int64_t tile = block.first_tile(); tile < block.end_tile(); ++tile) block.exponentiate(tile);
      block.normalise();
      for (int64_t tile = block.first_tile(); tile < block.end_tile(); ++tile)
        block.differentiate(tile, sums, gradients, accumulate);
      const int64_t slot = h * all_rows(p) + p.row_offset + b * p.rows + row;
      for (int64_t r = 0; r < count; ++r) {
        T* grad_query = block.grad_query + r * block.grad_query_stride;
        if (s.rows[r].visible == 0) fill_zero(grad_query, whole_vectors<T>(p.head_size));
        if (!writes_in_place<E>(p.head_size))
          unpack_row(grad_query, p.head_size, T(1), row_of<E>(p.grad_query, b, h, row + r));
        PriorFactors<T> factors{};
        if (s.rows[r].visible > 0)
          with_prior(p.prior, [&](auto kind) { factors = prior_factors<kind.value>(s.rows[r].prior); });
        center[slot + r] = factors.center * sums[r].center;
        width[slot + r] = factors.width * sums[r].width;
      }
    }
  return written;
}

// Writes [H, all rows] to the caller's memory, summed over the heads in order if they share one value.
template <class T>
void write_row_gradients(const BackwardParams& p, const T* from, const View<void>& to) {
  const bool shared = to.head_stride == 0, packed = p.query_offsets != nullptr;
  const int64_t batches = packed ? 1 : p.batches, rows = packed ? p.packed_rows : p.rows, stride = to.row_stride;
  for (int64_t h = 0; h < p.heads; ++h)
    for (int64_t b = 0; b < batches; ++b, from += rows) {
      T* at = row_of<T>(to, b, h, 0);
      if (shared && h > 0)
        for (int64_t i = 0; i < rows; ++i) at[i * stride] += from[i];
      else
        for (int64_t i = 0; i < rows; ++i) at[i * stride] = from[i];
    }
}

template <class T>
GMA_INLINE void add_to(T* sum, const T* term, int64_t count) {
  for (int64_t c = 0; c < count; c += lanes<T>) store(sum + c, load(sum + c) + load(term + c));
}

template <class E>
int64_t backward_workspace(const BackwardParams& p) {
  Arena measure{0};
  BackwardWorkspace<Arithmetic<E>>(p, plan_backward(p), measure);
  return measure.used;
}

// workspace: backward_workspace(p) bytes, 64-byte aligned
template <class E>
void backward_all(const BackwardParams& p, void* workspace, const Parallel& parallel) {
  using T = Arithmetic<E>;
  const BackwardPlan plan = plan_backward(p);
  Arena arena{reinterpret_cast<uintptr_t>(workspace)}, measure{0};
  const BackwardWorkspace<T> space(p, plan, arena);
  BackwardScratch<E>(p, plan, measure);
  const int64_t key_heads = p.heads / p.group;
  const double cells = double(p.batches * p.heads) * double(p.rows) * double(p.keys);

  // the last rows of a sentence usually see most: they go first
  for_each_task(parallel, plan.heads * plan.chunks, cells * 5 * double(p.head_size + p.value_size), measure.used,
                [&](int64_t task, Arena scratch) {
    const BackwardScratch<E> s(p, plan, scratch);
    const int64_t chunk = plan.chunks - 1 - task / plan.heads, head = task % plan.heads;
    const int64_t slot = chunk * plan.heads + head, first_row = chunk * plan.chunk_rows, h = head % key_heads;
    with_sentence<E>(p, head / key_heads, [&](const BackwardParams& own, int64_t b) {
      const int64_t end_row = first_row + clamp_to(own.rows - first_row, plan.chunk_rows);
      Arena memory{s.key_gradients};
      const bool in_place = plan.chunks == 1 && writes_in_place<E>(p.head_size) && writes_in_place<E>(p.value_size);
      const KeyGradients<T> gradients = in_place          ? KeyGradients<T>(own, b, h)
                                        : plan.chunks > 1 ? space.partial(p, slot)
                                                          : KeyGradients<T>(p, memory);
      const KeyRange written =
          backward_chunk<E>(own, b, h, first_row, end_row, s, gradients, space.center, space.width);
      if (plan.chunks > 1) {
        space.partial_ranges[slot] = written;
        if (chunk > 0) return;
      }
      // the first chunk is what the others are added to
      write_zeros(own, gradients, 0, written.empty() ? own.keys : written.begin);
      write_zeros(own, gradients, written.empty() ? own.keys : written.end, own.keys);
      if (plan.chunks == 1 && !in_place) write_key_gradients<E>(own, b, h, gradients);
    });
  });

  if (plan.chunks > 1)
    for_each_task(parallel, plan.heads, double(plan.heads) * double(p.keys) * 200, 64, [&](int64_t head, Arena) {
      const KeyGradients<T> total = space.partial(p, head);
      for (int64_t chunk = 1; chunk < plan.chunks; ++chunk) {
        const int64_t slot = chunk * plan.heads + head;
        const KeyGradients<T> part = space.partial(p, slot);
        const KeyRange keys = space.partial_ranges[slot];
        const int64_t key = keys.begin * total.key_stride, value = keys.begin * total.value_stride;
        add_to(total.key + key, part.key + key, (keys.end - keys.begin) * total.key_stride);
        add_to(total.value + value, part.value + value, (keys.end - keys.begin) * total.value_stride);
      }
      with_sentence<E>(p, head / key_heads, [&](const BackwardParams& own, int64_t b) {
        write_key_gradients<E>(own, b, head % key_heads, total);
      });
    });
  write_row_gradients(p, space.center, p.grad_center);
  write_row_gradients(p, space.width, p.grad_width);
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

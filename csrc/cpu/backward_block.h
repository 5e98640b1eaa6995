// A block of rows of one head in the backward, against all tiles of keys they see.
#pragma once

#include "backward_memory.h"
#include "backward_rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

GMA_INLINE int64_t clamp_to(int64_t x, int64_t largest) { return x < 0 ? 0 : x < largest ? x : largest; }

// One block of rows of one head. Call `exponentiate` for every tile, then `normalise`, then `differentiate` for every
// tile.
template <class E, class T>
struct BackwardBlock {
  const BackwardParams& p;
  const BackwardScratch<T>& s;
  int64_t b, h, first_row, row_count, largest;
  T* grad_query;
  int64_t grad_query_stride;

  BackwardBlock(const BackwardParams& p, const BackwardScratch<T>& s, int64_t b, int64_t h, int64_t first_row,
                int64_t row_count)
      : p(p), s(s), b(b), h(h), first_row(first_row), row_count(row_count) {
    make_rows(p, b, h, first_row, row_count, *s.made, s.rows);
    largest = largest_visible(s.rows, row_count);
    const bool in_place = writes_in_place<E>(p.head_size);
    grad_query = in_place ? row_of<T>(p.grad_query, b, h, first_row) : s.grad_query;
    grad_query_stride = in_place ? p.grad_query.row_stride : s.key_stride;
    pack_rows(row_of<E>(p.query, b, h, first_row), p.query.row_stride, row_count, p.head_size, T(1), s.query,
              tile_stride<T>);
    pack_rows(row_of<E>(p.grad_context, b, h, first_row), p.grad_context.row_stride, row_count, p.value_size, T(1),
              s.grad_context, tile_stride<T>);
    // a row that sees nothing may hold anything
    for (int64_t r = 0; r < row_count; ++r) {
      if (s.rows[r].visible > 0) continue;
      fill_zero(s.query + r * tile_stride<T>, tile_columns);
      fill_zero(s.grad_context + r * tile_stride<T>, tile_columns);
    }
  }

  int64_t tiles() const { return (largest + backward_tile_keys - 1) / backward_tile_keys; }
  // how many keys of a tile a row sees, or among `count` rows the one that sees most
  int64_t seen(int64_t tile, int64_t row, int64_t count = 1) const {
    return clamp_to(largest_visible(s.rows + row, count) - tile * backward_tile_keys, backward_tile_keys);
  }

  template <class Body>
  GMA_INLINE void for_each_group(Body body) const {
    const Groups groups = split_into_groups(row_count);
    for (int64_t row = 0; row < row_count; row += groups.size)
      body(row, int(row_count - row < groups.size ? row_count - row : groups.size));
  }

  // Calls body(kind, masked, dropout) with compile-time constants. width: how many keys of the tile the rows see.
  template <class Body>
  GMA_INLINE void specialised(int64_t tile, int64_t row, int count, int64_t width, Body body) const {
    const bool masked = smallest_visible(s.rows + row, count) - tile * backward_tile_keys < whole_vectors<T>(width);
    with_prior(p.prior, [&](auto kind) {
      with_flag(masked,
                [&](auto masked) { with_flag(p.drop_below > 0, [&](auto dropout) { body(kind, masked, dropout); }); });
    });
  }

  void exponentiate(int64_t tile) const {
    constexpr int64_t stride = tile_stride<T>;
    const int64_t first_key = tile * backward_tile_keys;
    for_each_group([&](int64_t row, int count) {
      const int64_t width = seen(tile, row, count);
      if (width == 0) return;
      T* weights = s.weights + s.tile_offset(tile) + row * stride;
      T* grads = s.grads + s.tile_offset(tile) + row * stride;
      multiply<Left::as_stored>(count, width, p.head_size, s.query + row * stride,
                                s.keys_transposed + tile * p.head_size * s.tile_row_stride, s.tile_row_stride, weights,
                                stride, false);
      multiply<Left::as_stored>(count, width, p.value_size, s.grad_context + row * stride,
                                s.values_transposed + tile * p.value_size * s.tile_row_stride, s.tile_row_stride, grads,
                                stride, false);
      const PrefetchedRows<Access::write> grad_query_rows(E(), p.grad_query, b, h, p.rows, p.head_size);
      const PrefetchedHead<E> next(p, b, h);
      Vector<T> weight_sums[group_lanes<T>], grad_sums[group_lanes<T>];
      specialised(tile, row, count, width, [&](auto kind, auto masked, auto dropout) {
        for (int64_t r = row; r < row + count; ++r, weights += stride, grads += stride) {
          const int64_t i = first_row + r;
          if (tile == 0) {
            grad_query_rows.prefetch(i);
            next.query.prefetch(i);
            next.key.prefetch(i);
            next.value.prefetch(i);
          }
          const Row<T>& own = s.rows[r];
          if (dropout.value) keep_factors(p, b, h, i, first_key, width, s.keep);
          exponentiate_row<kind.value, masked.value, dropout.value>(
              weights, grads, width, own.visible - first_key, T(first_key + 1 - own.prior.peak), own.prior,
              *row_of<T>(p.logsumexp, b, h, i), s.keep, weight_sums[r - row], grad_sums[r - row]);
        }
      });
      add_row_sums<T>(weight_sums, count, s.weight_sum + row);
      add_row_sums<T>(grad_sums, count, s.grad_sum + row);
    });
  }

  // Computes delta of each row, and the factor that turns its exponentials into weights.
  void normalise() const {
    for (int64_t r = 0; r < row_count; ++r) {
      // a row that sees nothing has no weights
      const double sum = s.weight_sum[r], delta = sum > 0 ? s.grad_sum[r] / sum : 0;
      s.factor[r] = sum > 0 ? T(1 / sum) : T(0);
      s.delta[r] = T(delta);
      s.delta_rest[r] = T(delta - double(s.delta[r]));
    }
  }

  // accumulate: whether gradients of keys hold something already
  void differentiate(int64_t tile, PriorSums<T>* sums, const KeyGradients<T>& gradients, bool accumulate) const {
    constexpr int64_t stride = tile_stride<T>;
    T *weights = s.weights + s.tile_offset(tile), *grads = s.grads + s.tile_offset(tile);
    const int64_t first_key = tile * backward_tile_keys, width = clamp_to(largest - first_key, backward_tile_keys);
    const PrefetchedRows<Access::write> grad_key_rows(E(), p.grad_key, b, h, p.keys, p.head_size);
    const PrefetchedRows<Access::write> grad_value_rows(E(), p.grad_value, b, h, p.keys, p.value_size);
    PrefetchedRows<Access::read> next_grad_context;
    int64_t next_b = b, next_h = h;
    if (next_head(p, next_b, next_h)) next_grad_context = {E(), p.grad_context, next_b, next_h, p.rows, p.value_size};
    for_each_group([&](int64_t row, int count) {
      const int64_t group_seen = seen(tile, row, count);
      with_prior(p.prior, [&](auto kind) {
        with_flag(p.drop_below > 0, [&](auto dropout) {
          for (int64_t r = row; r < row + count; ++r) {
            if (tile == 0) {
              next_grad_context.prefetch(first_row + r);
              grad_key_rows.prefetch(first_row + r);
              grad_value_rows.prefetch(first_row + r);
            }
            if (dropout.value) keep_factors(p, b, h, first_row + r, first_key, group_seen, s.keep);
            differentiate_row<kind.value, dropout.value>(
                weights + r * stride, grads + r * stride, group_seen, width, T(first_key + 1 - s.rows[r].prior.peak),
                s.rows[r].prior, s.factor[r], s.delta[r], s.delta_rest[r], T(p.scale), s.keep, sums[r]);
          }
        });
      });
      multiply<Left::as_stored>(count, p.head_size, group_seen, grads + row * stride, s.keys + first_key * s.key_stride,
                                s.key_stride, grad_query + row * grad_query_stride, grad_query_stride, tile > 0);
    });

    const Groups groups = split_into_groups(width);
    for (int64_t k = 0; k < width; k += groups.size) {
      const int count = int(width - k < groups.size ? width - k : groups.size);
      // only the rows from the first to the last that see the first of these keys
      int64_t first = 0, last = row_count;
      while (first < last && s.rows[first].visible <= first_key + k) ++first;
      while (last > first && s.rows[last - 1].visible <= first_key + k) --last;
      multiply<Left::transposed>(
          count, p.value_size, last - first, weights + first * stride + k, s.grad_context + first * stride, stride,
          gradients.value + (first_key + k) * gradients.value_stride, gradients.value_stride, accumulate);
      multiply<Left::transposed>(count, p.head_size, last - first, grads + first * stride + k, s.query + first * stride,
                                 stride, gradients.key + (first_key + k) * gradients.key_stride, gradients.key_stride,
                                 accumulate);
    }
  }
};

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

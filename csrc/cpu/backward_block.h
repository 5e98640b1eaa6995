// A block of rows of one head in the backward, against all tiles of keys they see.
#pragma once

#include "backward_memory.h"
#include "backward_rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

GMA_INLINE int64_t clamp_to(int64_t x, int64_t largest) { return x < 0 ? 0 : x < largest ? x : largest; }

// One block of rows of one head of the query. Call `exponentiate` for every tile, then `normalise`, then
// `differentiate` for every tile.
template <class E>
struct BackwardBlock {
  using T = Arithmetic<E>;
  using O = Operand<E>;
  const BackwardParams& p;
  const BackwardScratch<E>& s;
  int64_t b, h, first_row, row_count;
  KeyRange keys;  // that its rows see
  T* grad_query;
  int64_t grad_query_stride;

  BackwardBlock(const BackwardParams& p, const BackwardScratch<E>& s, int64_t b, int64_t h, int64_t first_row,
                int64_t row_count)
      : p(p), s(s), b(b), h(h), first_row(first_row), row_count(row_count) {
    make_rows<E>(p, b, h, first_row, row_count, *s.made, s.rows);
    keys = keys_seen(p, s.rows, row_count);
    const bool in_place = writes_in_place<E>(p.head_size);
    grad_query = in_place ? row_of<T>(p.grad_query, b, h, first_row) : s.grad_query;
    grad_query_stride = in_place ? p.grad_query.row_stride : s.key_stride;
    pack_left(row_of<E>(p.query, b, h, first_row), p.query.row_stride, row_count, p.head_size, s.query, tile_stride<O>);
    pack_left(row_of<E>(p.grad_context, b, h, first_row), p.grad_context.row_stride, row_count, p.value_size,
              s.grad_context, tile_stride<O>);
    // a row that sees nothing may hold anything
    for (int64_t r = 0; r < row_count; ++r) {
      if (s.rows[r].visible > 0) continue;
      fill_zero(s.query + r * tile_stride<O>, tile_columns);
      fill_zero(s.grad_context + r * tile_stride<O>, tile_columns);
    }
    if constexpr (is_pair<O>) {
      const auto pack = [&](const O* rows, int64_t columns, O* to) {
        pack_right(reinterpret_cast<const E*>(rows), 2 * tile_stride<O>, row_count, columns, 0, to, tile_stride<O>);
      };
      pack(s.query, p.head_size, s.query_right);
      pack(s.grad_context, p.value_size, s.grad_context_right);
    }
  }

  int64_t first_tile() const { return keys.begin / backward_tile_keys; }
  int64_t end_tile() const { return (keys.end + backward_tile_keys - 1) / backward_tile_keys; }
  // the columns of a tile that hold these keys
  static KeyRange columns(int64_t tile, KeyRange keys) {
    const int64_t first_key = tile * backward_tile_keys;
    return {clamp_to(keys.begin - first_key, backward_tile_keys), clamp_to(keys.end - first_key, backward_tile_keys)};
  }
  // those that some of `count` rows see
  KeyRange seen(int64_t tile, int64_t row, int64_t count) const {
    return columns(tile, keys_seen(p, s.rows + row, count));
  }

  template <class Body>
  GMA_INLINE void for_each_group(Body body) const {
    const Groups groups = split_into_groups<O>(row_count);
    for (int64_t row = 0; row < row_count; row += groups.size)
      body(row, int(row_count - row < groups.size ? row_count - row : groups.size));
  }

  // Calls body(kind, mask, dropout) with compile-time constants, for the keys first_key .. first_key + width - 1.
  template <class Body>
  GMA_INLINE void specialised(int64_t row, int count, int64_t first_key, int64_t width, Body body) const {
    const Mask mask = mask_of(p, s.rows + row, count, first_key, width);
    with_prior(p.prior, [&](auto kind) {
      with_mask(mask,
                [&](auto mask) { with_flag(p.drop_below > 0, [&](auto dropout) { body(kind, mask, dropout); }); });
    });
  }

  void exponentiate(int64_t tile) const {
    constexpr int64_t stride = tile_stride<T>;
    for_each_group([&](int64_t row, int count) {
      const KeyRange own = seen(tile, row, count);
      if (own.empty()) return;
      const int64_t column = own.begin / column_step<T> * column_step<T>, width = own.end - column;
      const int64_t first_key = tile * backward_tile_keys + column;
      T* weights = s.weights + s.tile_offset(tile) + row * stride + column;
      T* grads = s.grads + s.tile_offset(tile) + row * stride + column;
      const int64_t key_depth = operands<O>(p.head_size), value_depth = operands<O>(p.value_size);
      multiply<Left::as_stored>(count, width, key_depth, s.query + row * tile_stride<O>,
                                s.keys_transposed + tile * key_depth * s.tile_row_stride + column, s.tile_row_stride,
                                weights, stride, false, factor_of_product<O>(T(p.scale)));
      multiply<Left::as_stored>(count, width, value_depth, s.grad_context + row * tile_stride<O>,
                                s.values_transposed + tile * value_depth * s.tile_row_stride + column,
                                s.tile_row_stride, grads, stride, false);
      const PrefetchedRows<Access::write> grad_query_rows(E(), p.grad_query, b, h, p.rows, p.head_size);
      const PrefetchedHead<E> next(p, b, h);
      Vector<T> weight_sums[group_lanes<T>], grad_sums[group_lanes<T>];
      const bool is_first = tile == first_tile();
      specialised(row, count, first_key, width, [&](auto kind, auto mask, auto dropout) {
        for (int64_t r = row; r < row + count; ++r, weights += stride, grads += stride) {
          const int64_t i = first_row + r;
          if (is_first) {
            grad_query_rows.prefetch(i);
            next.query.prefetch(i);
            next.key.prefetch(i);
            next.value.prefetch(i);
          }
          const Row<T>& own = s.rows[r];
          if (dropout.value) keep_factors(p, b, h, i, first_key, width, s.keep);
          exponentiate_row<kind.value, mask.value, dropout.value>(
              weights, grads, width, own.first - first_key, own.visible - first_key, T(first_key + 1 - own.prior.peak),
              own.prior, *row_of<T>(p.logsumexp, b, h, i), s.keep, weight_sums[r - row], grad_sums[r - row]);
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
      const double sum = s.weight_sum[r];
      double delta = sum > 0 ? s.grad_sum[r] / sum : 0;
      if (p.grad_logsumexp.data != nullptr && sum > 0) delta -= *row_of<T>(p.grad_logsumexp, b, h, first_row + r);
      s.factor[r] = sum > 0 ? T(1 / sum) : T(0);
      s.delta[r] = T(delta);
      s.delta_rest[r] = T(delta - double(s.delta[r]));
    }
  }

  // accumulate: whether gradients of keys hold something already
  void differentiate(int64_t tile, PriorSums<T>* sums, const KeyGradients<T>& gradients, bool accumulate) const {
    constexpr int64_t stride = tile_stride<T>;
    T *weights = s.weights + s.tile_offset(tile), *grads = s.grads + s.tile_offset(tile);
    const KeyRange all = columns(tile, keys);
    const int64_t column = all.begin / column_step<T> * column_step<T>, width = all.end - column;
    const int64_t first_key = tile * backward_tile_keys + column;
    const bool is_first = tile == first_tile();
    weights += column, grads += column;
    const PrefetchedRows<Access::write> grad_key_rows(E(), p.grad_key, b, key_head(p, h), p.keys, p.head_size);
    const PrefetchedRows<Access::write> grad_value_rows(E(), p.grad_value, b, key_head(p, h), p.keys, p.value_size);
    PrefetchedRows<Access::read> next_grad_context;
    int64_t next_b = b, next_h = h;
    if (next_head(p, next_b, next_h)) next_grad_context = {E(), p.grad_context, next_b, next_h, p.rows, p.value_size};
    for_each_group([&](int64_t row, int count) {
      const KeyRange own = seen(tile, row, count);
      // from here on columns count from `column`
      const int64_t begin = own.empty() ? 0 : own.begin - column, end = own.empty() ? 0 : own.end - column;
      const int64_t from = begin / column_step<T> * column_step<T>;
      with_prior(p.prior, [&](auto kind) {
        with_flag(p.drop_below > 0, [&](auto dropout) {
          for (int64_t r = row; r < row + count; ++r) {
            if (is_first) {
              next_grad_context.prefetch(first_row + r);
              grad_key_rows.prefetch(first_row + r);
              grad_value_rows.prefetch(first_row + r);
            }
            if (dropout.value) keep_factors(p, b, h, first_row + r, first_key, end, s.keep);
            differentiate_row<kind.value, dropout.value>(
                weights + r * stride, grads + r * stride, from, end, width, T(first_key + 1 - s.rows[r].prior.peak),
                s.rows[r].prior, s.factor[r], s.delta[r], s.delta_rest[r], T(p.scale), s.keep, sums[r]);
          }
        });
      });
      if constexpr (is_pair<O>) pair_rows(weights, grads, row, count, column, width);
      // what is left of all that the rows see may be NaN, and has no part in the sum
      const int64_t skipped = begin / elements_per<O>;
      multiply<Left::as_stored>(count, p.head_size, operands<O>(end) - skipped,
                                reinterpret_cast<const O*>(grads + row * stride) + skipped,
                                s.keys + (first_key / elements_per<O> + skipped) * s.key_stride, s.key_stride,
                                grad_query + row * grad_query_stride, grad_query_stride, !is_first);
    });

    const O *weights_down = s.weights_down + column, *grads_down = s.grads_down + column;
    if constexpr (!is_pair<O>) weights_down = weights, grads_down = grads;
    const int64_t first_column = all.begin - column;
    const Groups groups = split_into_groups<O>(width - first_column);
    for (int64_t k = first_column; k < width; k += groups.size) {
      const int count = int(width - k < groups.size ? width - k : groups.size);
      // only the rows from the first to the last that see some of these keys
      const auto sees = [&](const Row<T>& row) {
        return row.visible > first_key + k && row.first < first_key + k + count;
      };
      int64_t first = 0, last = row_count;
      while (first < last && !sees(s.rows[first])) ++first;
      while (last > first && !sees(s.rows[last - 1])) --last;
      first /= elements_per<O>;
      const int64_t depth = operands<O>(last) - first, offset = first * tile_stride<O>;
      multiply<Left::transposed>(count, p.value_size, depth, weights_down + offset + k, s.grad_context_right + offset,
                                 tile_stride<O>, gradients.value + (first_key + k) * gradients.value_stride,
                                 gradients.value_stride, accumulate);
      multiply<Left::transposed>(count, p.head_size, depth, grads_down + offset + k, s.query_right + offset,
                                 tile_stride<O>, gradients.key + (first_key + k) * gradients.key_stride,
                                 gradients.key_stride, accumulate);
    }
  }

 private:
  // Makes operands of the weights and their gradients in some rows of a tile: of both for products over rows, and of
  // the gradients, in place, for those over keys.
  void pair_rows(T* weights, T* grads, int64_t row, int count, int64_t column, int64_t width) const {
    constexpr int64_t stride = tile_stride<T>;
    for (int64_t r = row; r < row + count; r += 2) {
      const bool has_second = r + 1 < row + count;
      for (auto [from, to] : {std::pair(weights, s.weights_down), std::pair(grads, s.grads_down)})
        for (int64_t c = 0; c < width; c += lanes<T>)
          store_pairs(to + r / 2 * tile_stride<O> + column + c, narrow_fast(load(from + r * stride + c)),
                      has_second ? narrow_fast(load(from + (r + 1) * stride + c)) : Words{});
      make_operands<O>(grads + r * stride, width);
      if (has_second) make_operands<O>(grads + (r + 1) * stride, width);
    }
  }
};

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

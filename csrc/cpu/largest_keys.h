// Whether narrow priors hide enough of the source to look for it, and the norms of keys that tell how much.
#pragma once

#include "rows.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// Whether rows would see less than half of what they do if all scores were 0, which is the most that can be hidden.
// For long sources alone: it reads all rows.
template <class E>
bool narrowing_pays(const ForwardParams& p) {
  using T = Arithmetic<E>;
  const bool falls = p.prior == PriorKind::gaussian || p.prior == PriorKind::laplace;
  if (!falls || p.keys < narrowed_keys || p.rows < narrowed_rows) return false;
  int64_t seen = 0, within_reach = 0;
  for (int64_t sentence = 0; sentence < p.batches; ++sentence)
    with_sentence<E>(p, sentence, [&](const ForwardParams& own, int64_t b) {
      for (int64_t h = 0; h < (shares_rows(p) ? 1 : p.heads); ++h)
        for (int64_t i = 0; i < own.rows; ++i) {
          const Row<T> row = make_row<E>(own, b, h, i);
          int32_t first = row.first, visible = row.visible;
          seen += visible - first;
          if (visible > 0) cut_to_reach(p.prior, row.prior, visible_depth<T>, first, visible);
          within_reach += visible - first;
        }
    });
  return 2 * within_reach < seen;
}

// largest: [B, H_kv], see ForwardParams::largest_keys
template <class E>
void find_largest_keys(const ForwardParams& p, double* largest, const Parallel& parallel) {
  const int64_t key_heads = p.heads / p.group;
  const double operations = 2.0 * double(p.batches * key_heads) * double(p.keys * p.head_size);
  for_each_task(parallel, p.batches * key_heads, operations, 64, [&](int64_t task, Arena) {
    with_sentence<E>(p, task / key_heads, [&](const ForwardParams& own, int64_t b) {
      const int64_t key_head = task % key_heads, first_head = key_head * p.group;
      // others may be anything
      KeyRange seen{0, 0};
      for (int64_t h = first_head; h < (shares_rows(p) ? first_head + 1 : first_head + p.group); ++h)
        for (int64_t i = 0; i < own.rows; ++i) seen.join({first_of(own, b, h, i), visible_of(own, b, h, i)});
      Arithmetic<E> norm = 0;
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        const Arithmetic<E> of_key = squared_norm(row_of<E>(own.key, b, key_head, j), p.head_size);
        norm = of_key > norm ? of_key : norm;
      }
      largest[task] = double(norm);
    });
  });
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

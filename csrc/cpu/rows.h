// Query rows as the kernels see them: their prior, the keys they may use, the weights that dropout keeps.
#pragma once

#include "../philox.h"
#include "../prior.h"
#include "math.h"
#include "multiply.h"
#include "pack.h"
#include "parallel.h"
#include "prefetch.h"

namespace gma {
namespace GMA_SIMD_LEVEL {

// queries and gradients of contexts are packed into rows of a tile
static_assert(max_head_size <= tile_columns);

// The lanes of the whole vectors that hold one number for each row of a group.
template <class T>
constexpr int group_lanes = int(whole_vectors<T>(group_rows));

// Whether matrix products may write rows of so many columns straight to the caller's memory: its elements are of the
// type of the arithmetic, and whole vectors fit a row.
template <class E>
GMA_INLINE bool writes_in_place(int64_t columns) {
  return std::is_same_v<E, Arithmetic<E>> && columns % lanes<Arithmetic<E>> == 0;
}

GMA_INLINE int32_t visible_of(const ForwardParams& p, int64_t b, int64_t h, int64_t i) {
  const View<const int32_t>& view = p.visible;
  const int64_t visible = view.data[b * view.batch_stride + h * view.head_stride + i * view.row_stride];
  return int32_t(visible < 0 ? 0 : visible < p.keys ? visible : p.keys);
}

template <class T>
struct Row {
  RowPrior<T> prior;
  int32_t visible;
};

// a row that sees nothing gets a prior that is never used
template <class T>
GMA_INLINE Row<T> make_row(const ForwardParams& p, int64_t b, int64_t h, int64_t i) {
  const int32_t visible = visible_of(p, b, h, i);
  if (visible == 0) return {};
  return {make_row_prior(*row_of<T>(p.center, b, h, i), *row_of<T>(p.width, b, h, i), visible), visible};
}

// Makes rows first_row .. first_row + count of a head, unless `rows` holds them already: the heads of a sentence often
// share their rows. `made` identifies those that `rows` holds, and is 0 before a thread's first task.
template <class T>
GMA_INLINE void make_rows(const ForwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t count, int64_t& made,
                          Row<T>* rows) {
  const bool shared = p.center.head_stride == 0 && p.width.head_stride == 0 && p.visible.head_stride == 0;
  const int64_t wanted = ((b * p.heads) + (shared ? 0 : h)) * p.rows + first_row + 1;
  if (made == wanted) return;
  made = wanted;
  for (int64_t r = 0; r < count; ++r) rows[r] = make_row<T>(p, b, h, first_row + r);
}

template <class T>
GMA_INLINE int64_t largest_visible(const Row<T>* rows, int64_t count) {
  int64_t largest = 0;
  for (int64_t r = 0; r < count; ++r) largest = rows[r].visible > largest ? rows[r].visible : largest;
  return largest;
}

template <class T>
GMA_INLINE int64_t smallest_visible(const Row<T>* rows, int64_t count) {
  int64_t smallest = rows[0].visible;
  for (int64_t r = 1; r < count; ++r) smallest = rows[r].visible < smallest ? rows[r].visible : smallest;
  return smallest;
}

// to[count rounded up] = 0 or 1/(1-p) for keys first_key, first_key + 1, ... of one row; first_key % 4 == 0.
// Writes whole batches of 4 vectors of counters: at most 4 * lanes<double> elements beyond count.
template <class T>
void keep_factors(const ForwardParams& p, int64_t b, int64_t h, int64_t i, int64_t first_key, int64_t count, T* to) {
  constexpr int n = lanes<uint64_t>;
  const T keep = T(p.keep_scale);
  for (int64_t j = 0; j < count; j += 4 * n) {
    Vector<uint64_t> words[4] = {count_up<uint64_t>() + uint64_t((first_key + j) >> 2),
                                 broadcast<uint64_t>(uint64_t(i)), broadcast<uint64_t>(uint64_t(b * p.heads + h)),
                                 Vector<uint64_t>{}};
    philox(words, p.seed);
    for (int lane = 0; lane < n; ++lane)
      for (int word = 0; word < 4; ++word) to[j + 4 * lane + word] = words[word][lane] >= p.drop_below ? keep : T(0);
  }
}

// Calls body with the kind as a compile-time constant, a std::integral_constant<PriorKind, kind>.
template <class Body>
GMA_INLINE void with_prior(PriorKind kind, Body body) {
  switch (kind) {
    case PriorKind::gaussian: return body(std::integral_constant<PriorKind, PriorKind::gaussian>());
    case PriorKind::laplace: return body(std::integral_constant<PriorKind, PriorKind::laplace>());
    case PriorKind::linear: return body(std::integral_constant<PriorKind, PriorKind::linear>());
    case PriorKind::none: return body(std::integral_constant<PriorKind, PriorKind::none>());
  }
}

template <class Body>
GMA_INLINE void with_flag(bool flag, Body body) {
  flag ? body(std::true_type()) : body(std::false_type());
}

// Runs task(index, arena) for every index; with little arithmetic on the calling thread alone, because waking others
// would cost more than it gains.
template <class Task>
void for_each_task(const Parallel& parallel, int64_t tasks, double operations, int64_t scratch_bytes,
                   const Task& task) {
  const Parallel alone{1, nullptr};
  run_tasks(operations < 2e6 ? alone : parallel, tasks, scratch_bytes,
            [](const void* state, int64_t index, void* scratch) {
    (*static_cast<const Task*>(state))(index, Arena{reinterpret_cast<uintptr_t>(scratch)});
  }, &task);
}

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

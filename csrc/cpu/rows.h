// Query rows as the kernels see them: their prior, the keys they may use, the weights that dropout keeps.
#pragma once

#include "../philox.h"
#include "../prior.h"
#include "math.h"
#include "multiply.h"
#include "narrow.h"
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

// The head of keys and values that a head of the query uses.
GMA_INLINE int64_t key_head(const ForwardParams& p, int64_t h) { return p.group == 1 ? h : h / p.group; }

GMA_INLINE int64_t all_rows(const ForwardParams& p) {
  return p.query_offsets != nullptr ? p.packed_rows : p.batches * p.rows;
}

GMA_INLINE bool shares_rows(const ForwardParams& p) {
  const bool first = p.first.data == nullptr || p.first.head_stride == 0;
  return !is_narrowed(p) && first && p.center.head_stride == 0 && p.width.head_stride == 0 &&
         p.visible.head_stride == 0;
}

GMA_INLINE int32_t visible_of(const ForwardParams& p, int64_t b, int64_t h, int64_t i) {
  const View<const int32_t>& view = p.visible;
  const int64_t visible = view.data[b * view.batch_stride + h * view.head_stride + i * view.row_stride];
  return int32_t(visible < 0 ? 0 : visible < p.keys ? visible : p.keys);
}

GMA_INLINE int32_t first_of(const ForwardParams& p, int64_t b, int64_t h, int64_t i) {
  const View<const int32_t>& view = p.first;
  if (view.data == nullptr) return 0;
  const int32_t first = view.data[b * view.batch_stride + h * view.head_stride + i * view.row_stride];
  return first < 0 ? 0 : first;
}

// It sees the keys first .. visible - 1, counted from 0.
template <class T>
struct Row {
  RowPrior<T> prior;
  int32_t first, visible;
};

// a row that sees nothing has visible = 0, and a prior that is never used
template <class E, class T = Arithmetic<E>>
GMA_INLINE Row<T> make_row(const ForwardParams& p, int64_t b, int64_t h, int64_t i) {
  int32_t visible = visible_of(p, b, h, i), first = first_of(p, b, h, i);
  if (visible <= first) return {};
  const RowPrior<T> prior = make_row_prior(*row_of<T>(p.center, b, h, i), *row_of<T>(p.width, b, h, i), visible, first);
  if (is_narrowed(p)) narrow_row<E>(p, b, h, i, prior, first, visible);
  return {prior, first, visible};
}

// Makes rows first_row .. first_row + count of a head, unless `rows` holds them already: the heads of a sentence often
// share their rows. `made` identifies those that `rows` holds, and is 0 before a thread's first task.
template <class E>
GMA_INLINE void make_rows(const ForwardParams& p, int64_t b, int64_t h, int64_t first_row, int64_t count, int64_t& made,
                          Row<Arithmetic<E>>* rows) {
  const int64_t wanted = (shares_rows(p) ? 0 : h) * all_rows(p) + p.row_offset + b * p.rows + first_row + 1;
  if (made == wanted) return;
  made = wanted;
  for (int64_t r = 0; r < count; ++r) rows[r] = make_row<E>(p, b, h, first_row + r);
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

// Keys begin .. end - 1, counted from 0.
struct KeyRange {
  int64_t begin, end;

  GMA_INLINE bool empty() const { return end <= begin; }
  GMA_INLINE void join(KeyRange other) {
    if (other.empty()) return;
    *this = empty() ? other : KeyRange{other.begin < begin ? other.begin : begin, other.end > end ? other.end : end};
  }
};

// Whether rows may begin behind the first key.
GMA_INLINE bool is_bounded(const ForwardParams& p) { return p.first.data != nullptr || is_narrowed(p); }

// From the first key that some row sees to the last.
template <class T>
GMA_INLINE KeyRange keys_seen(const ForwardParams& p, const Row<T>* rows, int64_t count) {
  if (!is_bounded(p)) return {0, largest_visible(rows, count)};
  KeyRange range{0, 0};
  for (int64_t r = 0; r < count; ++r) range.join({rows[r].first, rows[r].visible});
  return range;
}

template <class T>
GMA_INLINE int64_t largest_first(const Row<T>* rows, int64_t count) {
  int64_t largest = 0;
  for (int64_t r = 0; r < count; ++r) largest = rows[r].first > largest ? rows[r].first : largest;
  return largest;
}

// Which lanes of scores a row does not see: none, those from some key on, or those before some key, too.
enum class Mask { none, right, both };

// What a group of rows needs for the keys begin .. begin + width - 1, in whole vectors. begin: not past the first they
// see
template <class T>
GMA_INLINE Mask mask_of(const ForwardParams& p, const Row<T>* rows, int64_t count, int64_t begin, int64_t width) {
  if (is_bounded(p) && largest_first(rows, count) > begin) return Mask::both;
  return smallest_visible(rows, count) - begin < whole_vectors<T>(width) ? Mask::right : Mask::none;
}

template <Mask mask, class T>
GMA_INLINE BitsVector<T> lanes_seen(int64_t first, int64_t end) {
  if constexpr (mask == Mask::both) return first_lanes<T>(end) & ~first_lanes<T>(first);
  return first_lanes<T>(end);
}

// Groups of rows begin to look at a tile at a multiple of this: whole vectors, and whole counters of dropout.
template <class T>
constexpr int64_t column_step = lanes<T> < 4 ? 4 : lanes<T>;

// One sentence of a packed batch, as a batch of its own.
template <class E, class Params>
Params sentence_of(const Params& p, int64_t b) {
  using T = Arithmetic<E>;
  Params own = p;
  own.batches = 1;
  own.sentence = b;
  own.row_offset = p.query_offsets[b];
  own.rows = p.query_offsets[b + 1] - p.query_offsets[b];
  own.keys = p.key_offsets[b + 1] - p.key_offsets[b];
  const auto skip = [](auto& view, auto element, int64_t rows) {
    using Element = decltype(element);
    using Pointer =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const Element, Element>;
    if (view.data != nullptr) view.data = static_cast<Pointer*>(view.data) + rows * view.row_stride;
  };
  const int64_t first_row = own.row_offset, first_key = p.key_offsets[b];
  skip(own.query, E(), first_row), skip(own.context, E(), first_row);
  skip(own.key, E(), first_key), skip(own.value, E(), first_key);
  skip(own.center, T(), first_row), skip(own.width, T(), first_row), skip(own.logsumexp, T(), first_row);
  skip(own.visible, int32_t(), first_row), skip(own.first, int32_t(), first_row);
  if constexpr (std::is_base_of_v<BackwardParams, Params>) {
    skip(own.grad_context, E(), first_row), skip(own.grad_logsumexp, T(), first_row);
    skip(own.grad_query, E(), first_row), skip(own.grad_key, E(), first_key), skip(own.grad_value, E(), first_key);
  }
  return own;
}

// Calls body(params, batch) for one sentence, with its own parameters if the batch is packed.
template <class E, class Params, class Body>
GMA_INLINE void with_sentence(const Params& p, int64_t b, Body body) {
  if (p.query_offsets == nullptr) return body(p, b);
  body(sentence_of<E>(p, b), int64_t(0));
}

// to[count rounded up] = 0 or 1/(1-p) for keys first_key, first_key + 1, ... of one row; first_key % 4 == 0.
// Writes whole batches of 4 vectors of counters: at most 4 * lanes<double> elements beyond count.
template <class T>
void keep_factors(const ForwardParams& p, int64_t b, int64_t h, int64_t i, int64_t first_key, int64_t count, T* to) {
  constexpr int n = lanes<uint64_t>;
  const T keep = T(p.keep_scale);
  for (int64_t j = 0; j < count; j += 4 * n) {
    Vector<uint64_t> words[4] = {count_up<uint64_t>() + uint64_t((first_key + j) >> 2),
                                 broadcast<uint64_t>(uint64_t(i)),
                                 broadcast<uint64_t>(uint64_t((p.sentence + b) * p.heads + h)), Vector<uint64_t>{}};
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
GMA_INLINE void with_mask(Mask mask, Body body) {
  switch (mask) {
    case Mask::none: return body(std::integral_constant<Mask, Mask::none>());
    case Mask::right: return body(std::integral_constant<Mask, Mask::right>());
    case Mask::both: return body(std::integral_constant<Mask, Mask::both>());
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

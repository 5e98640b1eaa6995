// The two halves of the backward, and what the one over queries leaves for the one over keys. As in forward.h there are
// kernels for plain calls and for general ones.
#pragma once

#include "dispatch.h"
#include "place.h"

namespace gma {
namespace cuda {

// From the first to the last key that one of some rows sees, and those that all see. A row that sees nothing counts for
// `all_end` alone, with 0.
struct Extent {
  int any_end, all_end;
};
struct LeftExtent {
  int any_begin, all_begin;
};

// What the backward over keys needs of 16 rows of a stack.
struct alignas(16) PlainRowGroup {
  static constexpr int rows = group_rows;
  int end[rows], peak[rows];  // end: of the keys that the row sees
  float a[rows], b[rows];     // see Curve
  float shift[rows];          // -logsumexp, of base 2; NaN where center or width are impossible
  float delta[rows];          // sum over j of beta_ij dbeta_ij, less the gradient of the logsumexp
  float factor[rows];         // what brings the sum of the weights to 1
  Extent extent;
};
struct alignas(16) GeneralRowGroup : PlainRowGroup {
  LeftExtent left;
  int begin[rows];
};
template <bool general>
using RowGroup = std::conditional_t<general, GeneralRowGroup, PlainRowGroup>;

struct BackwardArguments {
  Call call;
  Matrix query, key, value, context, grad_context, grad_query, grad_key, grad_value;
  View<const float> grad_logsumexp;     // null for 0
  View<float> grad_center, grad_width;  // one value for every head
  void* groups;                         // RowGroup, see Place::first_group
};

inline bool is_general(const BackwardParams& p) {
  return is_general(static_cast<const ForwardParams&>(p)) || p.grad_logsumexp.data != nullptr;
}

// Calls body(Instance, std::bool_constant<quick>). A quick backward trusts logsumexp, and the context where it may; a
// careful one is for float32, for dropout, where even the context of a row with one weight is rounded, and for the
// largest heads.
template <class Body>
std::string with_quickness(const BackwardParams& p, const Body& body) {
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    if constexpr (sizeof(typename I::scalar) == 2 && I::head_tile <= 128)
      if (p.drop_below == 0) return body(instance, std::true_type());
    return body(instance, std::false_type());
  });
}

// Writes what belongs to query rows, and leaves the groups of rows for the other.
template <bool general>
std::string backward_over_queries(const BackwardParams& params, const BackwardArguments& arguments, void* stream);
template <bool general>
std::string backward_over_keys(const BackwardParams& params, const BackwardArguments& arguments, void* stream);

}  // namespace cuda
}  // namespace gma

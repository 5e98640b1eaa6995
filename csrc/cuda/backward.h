// The two halves of the backward.
#pragma once

#include "arguments.h"
#include "dispatch.h"

namespace gma {
namespace cuda {

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
std::string backward_over_queries(const BackwardParams& params, const BackwardArguments& arguments, void* stream);
std::string backward_over_keys(const BackwardParams& params, const BackwardArguments& arguments, void* stream);

}  // namespace cuda
}  // namespace gma

// The two halves of the backward.
#pragma once

#include "arguments.h"

namespace gma {
namespace cuda {

// Writes what belongs to query rows, and leaves delta, factor and largest for the other.
std::string backward_over_queries(const BackwardParams& params, const BackwardArguments& arguments, void* stream);
std::string backward_over_keys(const BackwardParams& params, const BackwardArguments& arguments, void* stream);

}  // namespace cuda
}  // namespace gma

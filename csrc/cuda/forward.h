// The forward of one or more rows, and decoding: one row. Kernels for plain calls and for general ones (see
// arguments.h) are the same source, compiled in files of their own, so that what plain calls do not need costs them
// nothing.
#pragma once

#include "split.h"

namespace gma {
namespace cuda {

template <bool general>
std::string launch_forward(const ForwardParams& params, const Split& split, void* stream);

template <bool general>
std::string launch_decode(const ForwardParams& params, const Split& split, void* stream);

}  // namespace cuda
}  // namespace gma

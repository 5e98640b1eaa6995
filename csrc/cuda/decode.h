// Decoding: one query row for every head.
#pragma once

#include "split.h"

namespace gma {
namespace cuda {

std::string decode(const ForwardParams& params, const Split& split, void* stream);

}  // namespace cuda
}  // namespace gma

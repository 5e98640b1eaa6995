// Decoding: one query row for every head.
#pragma once

#include "launch.h"

namespace gma {
namespace cuda {

size_t decode_workspace(const ForwardParams& params);
std::string decode(const ForwardParams& params, void* workspace, void* stream);

}  // namespace cuda
}  // namespace gma

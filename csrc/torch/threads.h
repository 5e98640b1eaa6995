// The threads that torch computes with, as the kernels take them.
#pragma once

#include "gaussian_attention.h"

namespace gma {

Parallel torch_threads();

}  // namespace gma

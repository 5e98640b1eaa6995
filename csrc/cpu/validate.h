// Checks of the values in center, width and visible.
#pragma once

#include "../gaussian_attention.h"

namespace gma {

// Throws std::invalid_argument naming the first bad value: a negative visible or, where visible > 0,
// a center that is not finite or a width that is not finite and positive.
void validate_rows(const ForwardParams& params);

}  // namespace gma

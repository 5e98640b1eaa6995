#define GMA_SIMD_LEVEL baseline
#define GMA_VECTOR_BYTES 16
#include "kernels.h"

namespace gma {

const Level baseline_level = {"baseline",
                              baseline::forward,
                              baseline::backward_workspace,
                              baseline::backward,
                              baseline::attention_weights,
                              baseline::narrowing_pays,
                              baseline::find_largest_keys};

}  // namespace gma

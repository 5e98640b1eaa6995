#if defined(__x86_64__)
#define GMA_SIMD_LEVEL avx2
#define GMA_VECTOR_BYTES 32
#include "kernels.h"

namespace gma {

const Level avx2_level = {"avx2",
                          avx2::forward,
                          avx2::backward_workspace,
                          avx2::backward,
                          avx2::attention_weights,
                          avx2::narrowing_pays,
                          avx2::find_largest_keys};

}  // namespace gma
#endif

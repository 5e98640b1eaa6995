#if defined(__x86_64__)
#define GMA_SIMD_LEVEL avx512
#define GMA_VECTOR_BYTES 64
#include "kernels.h"

namespace gma {

const Level avx512_level = {"avx512",
                            avx512::forward,
                            avx512::backward_workspace,
                            avx512::backward,
                            avx512::attention_weights,
                            avx512::narrowing_pays,
                            avx512::find_largest_keys};

}  // namespace gma
#endif

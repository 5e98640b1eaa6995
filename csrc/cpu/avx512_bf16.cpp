#if defined(__x86_64__)
#define GMA_SIMD_LEVEL avx512_bf16
#define GMA_VECTOR_BYTES 64
#include "kernels.h"

namespace gma {

const Level avx512_bf16_level = {"avx512_bf16",
                                 avx512_bf16::forward,
                                 avx512_bf16::backward_workspace,
                                 avx512_bf16::backward,
                                 avx512_bf16::attention_weights,
                                 avx512_bf16::narrowing_pays,
                                 avx512_bf16::find_largest_keys,
                                 &avx512_level};

}  // namespace gma
#endif

#if defined(__x86_64__)
#define GMA_SIMD_LEVEL avx512
#define GMA_VECTOR_BYTES 64
#include "product.h"
#include "rows.h"

namespace gma {
namespace engine {

const EngineLevel avx512_engine = {
    "avx512",
    false,
    avx512::multiply_packed,
    nullptr,
    avx512::add_and_normalize,
    avx512::attend_row,
    avx512::hyperbolic_tangent,
    avx512::dot,
    avx512::largest,
};

}  // namespace engine
}  // namespace gma
#endif

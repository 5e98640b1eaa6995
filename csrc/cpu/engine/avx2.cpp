#if defined(__x86_64__)
#define GMA_SIMD_LEVEL avx2
#define GMA_VECTOR_BYTES 32
#include "product.h"
#include "rows.h"

namespace gma {
namespace engine {

const EngineLevel avx2_engine = {
    "avx2",
    false,
    avx2::multiply_packed,
    nullptr,
    avx2::add_and_normalize,
    avx2::attend_row,
    avx2::hyperbolic_tangent,
    avx2::dot,
    avx2::largest,
};

}  // namespace engine
}  // namespace gma
#endif

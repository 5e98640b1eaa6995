#if defined(__x86_64__)
#define GMA_SIMD_LEVEL avx512_vnni
#define GMA_VECTOR_BYTES 64
#include "rows.h"
#include "tile_product.h"

namespace gma {
namespace engine {

const EngineLevel avx512_vnni_engine = {
    "avx512_vnni",
    true,
    avx512_vnni::multiply_integers,
    avx512_vnni::quantize,
    avx512_vnni::add_and_normalize,
    avx512_vnni::attend_row,
    avx512_vnni::hyperbolic_tangent,
    avx512_vnni::dot,
    avx512_vnni::largest,
};

const EngineLevel avx512_amx_engine = {
    "avx512_amx",
    true,
    avx512_vnni::multiply_tiles,
    avx512_vnni::quantize,
    avx512_vnni::add_and_normalize,
    avx512_vnni::attend_row,
    avx512_vnni::hyperbolic_tangent,
    avx512_vnni::dot,
    avx512_vnni::largest,
};

bool has_tiles() {
  static const bool granted = avx512_vnni::granted_tiles();
  return granted;
}

}  // namespace engine
}  // namespace gma
#endif

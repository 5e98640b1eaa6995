#define GMA_SIMD_LEVEL baseline
#define GMA_VECTOR_BYTES 16
#include "product.h"
#include "rows.h"

namespace gma {
namespace engine {

const EngineLevel baseline_engine = {
    "baseline",
    false,
    baseline::multiply_packed,
    nullptr,
    baseline::add_and_normalize,
    baseline::attend_row,
    baseline::hyperbolic_tangent,
    baseline::dot,
    baseline::largest,
};

}  // namespace engine
}  // namespace gma

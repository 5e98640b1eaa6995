#include "level.h"

namespace gma {
namespace engine {

const EngineLevel& engine_level() {
  const std::string name = simd_level();
#if defined(__x86_64__)
  __builtin_cpu_init();
  // avx512_bf16, too, which is the same to the engine
  if (name.rfind(avx512_engine.name, 0) == 0) {
    if (!__builtin_cpu_supports("avx512vnni")) return avx512_engine;
    return has_tiles() ? avx512_amx_engine : avx512_vnni_engine;
  }
  if (name == avx2_engine.name) return avx2_engine;
#endif
  return baseline_engine;
}

}  // namespace engine
}  // namespace gma

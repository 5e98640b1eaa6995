// The entry points: check the values, then run the kernels of the level in use.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

#include "level.h"
#include "pool.h"
#include "validate.h"

namespace gma {
namespace {

// best first; __builtin_cpu_supports also asks whether the operating system saves the registers
std::vector<const Level*> runnable_levels() {
  std::vector<const Level*> levels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) levels.push_back(&avx512_bf16_level);
    levels.push_back(&avx512_level);
  }
  if (avx2) levels.push_back(&avx2_level);
#endif
  levels.push_back(&baseline_level);
  return levels;
}

const Level* find_level(const std::string& name) {
  std::string known;
  for (const Level* level : runnable_levels()) {
    if (name == level->name) return level;
    known += (known.empty() ? "" : ", ") + std::string(level->name);
  }
  throw std::invalid_argument("SIMD level '" + name + "' is not available; this build on this CPU has " + known);
}

std::atomic<const Level*> chosen_level{nullptr};

const Level& level() {
  const Level* current = chosen_level.load(std::memory_order_acquire);
  if (current == nullptr) {
    const char* wanted = std::getenv("GMA_SIMD");
    current = wanted != nullptr && *wanted != '\0' ? find_level(wanted) : runnable_levels().front();
    chosen_level.store(current, std::memory_order_release);
  }
  return *current;
}

const Level& level_for(ScalarType type) {
  const Level& chosen = level();
  return chosen.others != nullptr && type != ScalarType::bfloat16 ? *chosen.others : chosen;
}

// Calls body(kernels, params), where it pays with what tells rows how much their priors hide.
template <class Params, class Body>
void with_narrow_rows(const Params& params, const Parallel& parallel, Body body) {
  const Level& kernels = level_for(params.scalar_type);
  Params own = params;
  std::vector<double> largest;
  if (kernels.narrowing_pays(params)) {
    largest.resize(size_t(params.batches * params.heads / params.group));
    kernels.find_largest_keys(params, largest.data(), parallel);
    own.largest_keys = largest.data();
  }
  body(kernels, own);
}

}  // namespace

void forward(const ForwardParams& params, const Parallel& parallel) {
  validate_rows(params);
  with_narrow_rows(params, parallel,
                   [&](const Level& kernels, const ForwardParams& own) { kernels.forward(own, parallel); });
}

void backward(const BackwardParams& params, const Parallel& parallel) {
  validate_rows(params);
  with_narrow_rows(params, parallel, [&](const Level& kernels, const BackwardParams& own) {
    const size_t bytes = size_t(kernels.backward_workspace(own));
    const auto give_back = [bytes](void* block) { give_block(block, bytes); };
    const std::unique_ptr<void, decltype(give_back)> workspace(take_block(bytes), give_back);
    if (workspace == nullptr) throw std::bad_alloc();
    kernels.backward(own, workspace.get(), parallel);
  });
}

void attention_weights(const ForwardParams& params, void* weights, const Parallel& parallel) {
  validate_rows(params);
  level_for(params.scalar_type).attention_weights(params, weights, parallel);
}

std::string simd_level() { return level().name; }

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (const Level* level : runnable_levels()) names.push_back(level->name);
  return names;
}

void use_simd(const std::string& name) { chosen_level.store(find_level(name), std::memory_order_release); }

}  // namespace gma

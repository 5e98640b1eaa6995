// The kernels of one instruction-set level, as seen from outside its unit.
#pragma once

#include "../gaussian_attention.h"

namespace gma {

struct Level {
  const char* name;
  void (*forward)(const ForwardParams&, const Parallel&);
  int64_t (*backward_workspace)(const BackwardParams&);
  void (*backward)(const BackwardParams&, void* workspace, const Parallel&);
  void (*attention_weights)(const ForwardParams&, void* weights, const Parallel&);
  bool (*narrowing_pays)(const ForwardParams&);
  void (*find_largest_keys)(const ForwardParams&, double* largest, const Parallel&);
  const Level* others = nullptr;  // if not null, this one serves bfloat16 alone and that one the other element types
};

#if defined(__x86_64__)
extern const Level avx512_bf16_level, avx512_level, avx2_level;
#endif
extern const Level baseline_level;

}  // namespace gma

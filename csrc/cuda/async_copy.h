// cp.async, wrapped once: 16 bytes from global to shared memory past the registers, in groups that can be waited for.
#pragma once

#include "platform.h"

namespace gma {
namespace cuda {

#if defined(__CUDACC__)

// Both addresses 16-byte aligned; what lies past the first `bytes` becomes 0 and is not read.
GMA_DEVICE void copy_async(void* shared, const void* global, int bytes) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(bytes)
      : "memory");
}

GMA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most this many of the thread's groups are on their way. Other threads' copies need a barrier, too.
template <int groups_left>
GMA_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

#else

inline void copy_async(void* shared, const void* global, int bytes) { emulator::copy_async(shared, global, bytes); }
inline void commit_copies() { emulator::commit_copies(); }
template <int groups_left>
void wait_for_copies() {
  emulator::wait_for_copies(groups_left);
}

#endif

}  // namespace cuda
}  // namespace gma

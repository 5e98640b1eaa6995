// Dynamic scheduling of numbered tasks over the caller's threads.
#pragma once

#include "../gaussian_attention.h"

namespace gma {

constexpr int64_t zeroed_scratch_bytes = 64;

// Calls task(state, index, scratch) once for every index below `tasks`; scratch is 64-byte aligned
// and private to the thread. Its first `zeroed_scratch_bytes` are 0 before a thread's first task; otherwise it is as
// the last task left it. Throws std::bad_alloc from the calling thread.
void run_tasks(const Parallel& parallel, int64_t tasks, int64_t scratch_bytes,
               void (*task)(const void* state, int64_t index, void* scratch), const void* state);

}  // namespace gma

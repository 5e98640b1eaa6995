// Dynamic scheduling of numbered tasks over the caller's threads.
#pragma once

#include "../gaussian_attention.h"

namespace gma {

// Calls task(state, index, scratch) once for every index below `tasks`; scratch is 64-byte aligned,
// private to the thread and kept between calls. Throws std::bad_alloc from the calling thread.
void run_tasks(const Parallel& parallel, int64_t tasks, int64_t scratch_bytes,
               void (*task)(const void* state, int64_t index, void* scratch), const void* state);

}  // namespace gma

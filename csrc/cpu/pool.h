// A pool of big memory blocks: one that is given back is kept for the next call.
//
// A fresh page costs a fault and its zeroing: for the megabytes that a call writes that is as much time as the
// computation. The pool keeps at most 256 MB, or GMA_POOL_MB megabytes if the environment says so (0 keeps nothing);
// beyond that the least recently used blocks go back to the system. Blocks in use do not count, and nothing is
// allocated in advance.
#pragma once

#include <cstddef>

namespace gma {

// smaller blocks come from the system's allocator, which reuses them by itself
constexpr size_t smallest_pooled_bytes = size_t(64) << 10;

// Aligned to 64 bytes, contents arbitrary; nullptr when memory runs out. Any thread may call this.
void* take_block(size_t bytes);

// bytes: what the block was taken with. Any thread may call this, not only the one that took the block.
void give_block(void* block, size_t bytes);

// How many bytes are kept at this moment.
size_t kept_block_bytes();

}  // namespace gma

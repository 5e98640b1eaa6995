// Big blocks of memory that are kept for the next call when they are given back.
//
// A fresh page costs a fault and its zeroing: for the megabytes that a call writes that is as much time
// as the computation. What is kept is bounded: 256 MB, or GMA_POOL_MB megabytes if the environment says
// so (0 keeps nothing); past that the blocks unused for longest go back to the system. Blocks in use do
// not count, and nothing is kept that was not in use before.
#pragma once

#include <cstddef>

namespace gma {

// smaller blocks come from the system's allocator, which reuses them by itself
constexpr size_t smallest_pooled_bytes = size_t(64) << 10;

// Aligned to 64 bytes, contents arbitrary; nullptr when memory runs out. From any thread.
void* take_block(size_t bytes);

// `bytes` as it was taken with. From any thread, also from one that did not take it.
void give_block(void* block, size_t bytes);

// What is kept at this moment.
size_t kept_block_bytes();

}  // namespace gma

// Philox4x32-10 (Salmon et al., 2011), the generator behind dropout on every backend.
//
// The weight of row i and key j (both 0-based) of head h in sentence b is decided by word j & 3 of
// key (seed low, seed high) and counter (j >> 2, i, b * H + h, 0).
#pragma once

#include <cstdint>

#include "prior.h"

namespace gma {

// Word holds 32-bit values in 64-bit lanes: uint64_t or a SIMD vector of it.
template <class Word>
GMA_HOST_DEVICE void philox(Word counter[4], uint64_t seed) {
  const uint64_t low = 0xffffffffull;
  uint64_t key0 = seed & low, key1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const Word product0 = counter[0] * 0xD2511F53ull, product1 = counter[2] * 0xCD9E8D57ull;
    counter[0] = (product1 >> 32) ^ counter[1] ^ key0;
    counter[2] = (product0 >> 32) ^ counter[3] ^ key1;
    counter[1] = product1 & low;
    counter[3] = product0 & low;
    key0 = (key0 + 0x9E3779B9ull) & low;
    key1 = (key1 + 0xBB67AE85ull) & low;
  }
}

}  // namespace gma

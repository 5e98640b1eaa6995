// Which weights dropout keeps. One run of the generator decides four neighbouring keys of a row; lanes that hold parts
// of the same four share it.
#pragma once

#include "../philox.h"
#include "place.h"

namespace gma {
namespace cuda {

struct Dropout {
  bool on;
  uint32_t drop_below;
  uint64_t seed;
  uint64_t flat_head;
  int group;
};

GMA_DEVICE Dropout make_dropout(const Call& call, const Place& place) {
  const bool on = call.drop_below > 0;
  const uint64_t seed = on && call.seed_pointer != nullptr ? *call.seed_pointer : call.seed;
  return {on, call.drop_below, seed, static_cast<uint64_t>(place.flat_head), place.group};
}

// Bit i: whether key 4 * quad + i of a row of the stack is kept.
GMA_DEVICE uint32_t kept_of_four(const Dropout& dropout, int row, int quad) {
  const RowOfHead at = unstack(row, dropout.group);
  uint64_t words[4] = {static_cast<uint64_t>(quad), static_cast<uint64_t>(at.row),
                       dropout.flat_head + static_cast<uint64_t>(at.head), 0};
  philox(words, dropout.seed);
  uint32_t kept = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) kept |= (words[i] >= dropout.drop_below ? 1u : 0u) << i;
  return kept;
}

// For 16 rows from `row` on by 8 keys from `key` on: bit i is for element i of the lane's fragment.
GMA_DEVICE uint32_t kept_by_rows(const Dropout& dropout, int row, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  // of two neighbours, who need the same fours of rows g and g + 8, each computes one
  const bool odd = t % 2 == 1;
  const uint32_t mine = kept_of_four(dropout, row + g + (odd ? 8 : 0), key / 4 + t / 2);
  const uint32_t other = __shfl_xor_sync(whole_warp, mine, 1);
  const uint32_t upper = odd ? other : mine, lower = odd ? mine : other;
  const int shift = odd ? 2 : 0;
  return (upper >> shift & 3) | (lower >> shift & 3) << 2;
}

// For 16 keys from `key` on by 8 rows from `row` on: bit i is for element i of the lane's fragment.
GMA_DEVICE uint32_t kept_by_keys(const Dropout& dropout, int key, int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  // four lanes hold keys of one four, each of them in 2 rows and twice: each lane computes one of the four
  const int own = g % 4;
  const uint32_t mine = kept_of_four(dropout, row + 2 * t + own % 2, key / 4 + g / 4 + own / 2 * 2);
  uint32_t kept = 0;
#pragma unroll
  for (int element = 0; element < 4; ++element) {
    const int owner = (g - own + element) * 4 + t;
    kept |= (__shfl_sync(whole_warp, mine, owner) >> own & 1) << element;
  }
  return kept;
}

// For fragments of `tiles` times 8 columns, row_tiles times 16 rows: bit 4 n + i of kept[r] is for element [r][n][i].
// Not unrolled, the generator is long; best asked for while the fragments are not yet in registers.
template <int tiles, int row_tiles, class Kept>
GMA_DEVICE void find_kept(uint32_t (&kept)[row_tiles], const Kept& kept_of_tile) {
  static_assert(tiles <= 8);
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    kept[r] = 0;
#pragma unroll 1
    for (int n = 0; n < tiles; ++n) kept[r] |= kept_of_tile(r, n) << 4 * n;
  }
}

// Sets what is not kept to 0, and multiplies the rest with keep_scale.
template <int tiles, int row_tiles>
GMA_DEVICE void drop(float (&x)[row_tiles][tiles][4], const uint32_t (&kept)[row_tiles], float keep_scale) {
#pragma unroll
  for (int r = 0; r < row_tiles; ++r)
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[r][n][i] = kept[r] >> (4 * n + i) & 1 ? x[r][n][i] * keep_scale : 0;
}

}  // namespace cuda
}  // namespace gma

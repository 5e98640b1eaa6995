// Products of bytes in tiles, where the CPU has AMX: 16 rows by 16 outputs by 64 inputs an instruction. Sums are exact,
// so that these are the bits of integer_product.h.
#pragma once

#include "integer_product.h"

#if defined(__linux__) && defined(__has_include)
#if __has_include(<amxint8intrin.h>)
#define GMA_HAS_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace gma {
namespace GMA_SIMD_LEVEL {

#ifdef GMA_HAS_TILES

using engine::byte_rows;
constexpr int tile_rows = 16, tile_bytes = 64;
// fewer rows leave so much of a tile unused that vectors are as fast
constexpr int64_t fewest_tiled_rows = 4;

// Linux gives a process room for tiles when it asks.
inline bool granted_tiles() {
  unsigned a, b, c, d;
  constexpr unsigned tile = 1u << 24, int8 = 1u << 25;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (tile | int8)) != (tile | int8)) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

// What a compiler may do with memory ends here: it does not know what tiles read.
GMA_INLINE void memory_is_as_written() { asm volatile("" ::: "memory"); }

// Sums of 32 rows and 32 outputs. Meanwhile lines of what is needed next are asked for, from `next` on.
__attribute__((target("amx-tile,amx-int8"))) inline void multiply_tiles_block(const uint8_t* x, int64_t x_stride,
                                                                              const int8_t* w, int64_t depth,
                                                                              const char* next, int64_t lines,
                                                                              int32_t* sums) {
  constexpr int64_t w_stride = 4 * panel_columns, sums_stride = byte_rows * sizeof(int32_t);
  const uint8_t* lower = x + tile_rows * x_stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < depth; k += tile_bytes, w += tile_bytes * panel_columns) {
    for (int64_t line = 0; line < lines; ++line, next += 64) __builtin_prefetch(next, 0, 2);
    _tile_loadd(4, x + k, x_stride);
    _tile_loadd(6, w, w_stride);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(7, w + tile_bytes, w_stride);
    _tile_dpbusd(1, 4, 7);
    _tile_loadd(5, lower + k, x_stride);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_stored(0, sums, sums_stride);
  _tile_stored(1, sums + tile_rows, sums_stride);
  _tile_stored(2, sums + tile_rows * byte_rows, sums_stride);
  _tile_stored(3, sums + tile_rows * byte_rows + tile_rows, sums_stride);
}

__attribute__((target("amx-tile,amx-int8"))) inline void multiply_tiles(const PackedWeights& weights, const Inputs& x,
                                                                        int64_t first_panel, int64_t panels, float* y,
                                                                        int64_t y_stride, bool relu) {
  if (weights.type != WeightType::int8 || x.rows < fewest_tiled_rows)
    return multiply_integers(weights, x, first_panel, panels, y, y_stride, relu);
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.bytes_per_row[tile] = tile_bytes;
    shapes.rows[tile] = tile_rows;
  }
  memory_is_as_written();
  _tile_loadconfig(&shapes);
  const int64_t depth = padded(weights.inputs), size = depth * panel_columns;
  const int64_t blocks = 2 * ((x.rows + byte_rows - 1) / byte_rows), lines = (panel_columns + blocks - 1) / blocks;
  alignas(64) int32_t sums[byte_rows * byte_rows];
  for (int64_t panel = first_panel; panel < first_panel + panels; ++panel) {
    const int8_t* w = static_cast<const int8_t*>(weights.panels) + panel * size;
    const char* next = reinterpret_cast<const char*>(w) + size;
    for (int64_t half = 0; half < panel_columns; half += byte_rows)
      for (int64_t row = 0; row < x.rows; row += byte_rows, next += lines * depth) {
        multiply_tiles_block(x.bytes + row * x.stride, x.stride, w + 4 * half, depth, next, lines, sums);
        const int64_t column = panel * panel_columns + half;
        for (int64_t r = 0; r < byte_rows && row + r < x.rows; ++r)
          for (int64_t c = 0; c < byte_rows; c += 16)
            finish_sums(_mm512_load_si512(sums + r * byte_rows + c), weights, column + c, x.scales[row + r], relu,
                        y + (row + r) * y_stride + column + c);
      }
  }
  _tile_release();
}

#else

inline bool granted_tiles() { return false; }
inline void multiply_tiles(const PackedWeights& weights, const Inputs& x, int64_t first_panel, int64_t panels, float* y,
                           int64_t y_stride, bool relu) {
  multiply_integers(weights, x, first_panel, panels, y, y_stride, relu);
}

#endif

}  // namespace GMA_SIMD_LEVEL
}  // namespace gma

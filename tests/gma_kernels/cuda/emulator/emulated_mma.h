// What csrc/cuda/mma.h wraps, for the emulator.
#pragma once

namespace gma {
namespace cuda {

struct MatrixRow {
  uint16_t x[8];
};
struct Registers {
  uint32_t x[4];
};

inline void exchange_matrices(uint32_t (&x)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator::fail("ldmatrix from a misaligned address");
  MatrixRow mine;
  std::memcpy(&mine, row, 16);
  const auto distribute = [transposed](const MatrixRow* rows, Registers* to) {
    for (int lane = 0; lane < 32; ++lane)
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int g = lane / 4, t = lane % 4;
        const MatrixRow* at = rows + 8 * matrix;
        const uint32_t low = transposed ? at[2 * t].x[g] : at[g].x[2 * t];
        const uint32_t high = transposed ? at[2 * t + 1].x[g] : at[g].x[2 * t + 1];
        to[lane].x[matrix] = low | high << 16;
      }
  };
  const int kind = emulator::matrix_kind + (transposed ? 8 : 0);
  const Registers taken = emulator::exchange<MatrixRow, Registers>(whole_warp, kind, mine, distribute);
  for (int i = 0; i < 4; ++i) x[i] = taken.x[i];
}

inline void load_matrices(uint32_t (&x)[4], const void* row) { exchange_matrices(x, row, false); }
inline void load_matrices_transposed(uint32_t (&x)[4], const void* row) { exchange_matrices(x, row, true); }

// Products are exact and summed up in float64, where a tensor core truncates: a few units of float32 in the last place.
template <class scalar>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragments {
    float c[4];
    uint32_t a[4], b[2];
  };
  struct Product {
    float c[4];
  };
  const auto half = [](uint32_t word, int high) {
    scalar x;
    x.bits = uint16_t(word >> 16 * high);
    return double(to_float(x));
  };
  const Fragments mine{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  const auto multiply = [half](const Fragments* from, Product* to) {
    double left[16][16], right[8][16];
    for (int lane = 0; lane < 32; ++lane)
      for (int word = 0; word < 4; ++word)
        for (int high = 0; high < 2; ++high) {
          const int g = lane / 4, k = 2 * (lane % 4) + high;
          left[g + 8 * (word & 1)][k + 8 * (word >> 1)] = half(from[lane].a[word], high);
          if (word < 2) right[g][k + 8 * word] = half(from[lane].b[word], high);
        }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const double *row = left[lane / 4 + 8 * (i >> 1)], *column = right[2 * (lane % 4) + (i & 1)];
        double sum = from[lane].c[i];
        for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
        to[lane].c[i] = float(sum);
      }
  };
  const Product product = emulator::exchange<Fragments, Product>(whole_warp, emulator::product_kind, mine, multiply);
  for (int i = 0; i < 4; ++i) c[i] = product.c[i];
}

}  // namespace cuda
}  // namespace gma

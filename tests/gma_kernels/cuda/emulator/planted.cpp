// Small kernels, right and wrong, that show what the emulator and the sanitizers notice: planted NAME.
// Exit code 0: the kernel gave what it should; 1: something else; others: see tests/support/cuda_emulator.py.

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "async_copy.h"
#include "mma.h"

namespace {

using namespace gma::cuda;

constexpr int threads = 64;

struct Params {
  const float* from;
  float* to;
};
using Kernel = void (*)(Params);

int thread() { return int(threadIdx.x); }

// to[i] = from of the next thread, through shared memory
template <bool has_barrier>
void neighbour(Params p) {
  float* shared = shared_memory<float>();
  shared[thread()] = p.from[thread()];
  if (has_barrier) __syncthreads();
  p.to[thread()] = shared[(thread() + 1) % threads];
}

// the same within a warp, where __syncwarp orders memory and a shuffle does not
template <bool has_fence>
void neighbour_in_warp(Params p) {
  float* shared = shared_memory<float>();
  const int lane = thread() % 32, first = thread() - lane;
  shared[thread()] = p.from[thread()];
  if (has_fence) __syncwarp();
  else __shfl_xor_sync(whole_warp, lane, 1);
  p.to[thread()] = shared[first + (lane + 1) % 32];
}

void divergent_barrier(Params) {
  if (thread() < 32) __syncthreads();
  else __syncthreads();
}

void lane_left(Params p) {
  if (thread() == 3) return;
  p.to[thread()] = __shfl_xor_sync(whole_warp, p.from[thread()], 1);
}

void different_masks(Params p) {
  p.to[thread()] = __shfl_xor_sync(thread() % 32 < 31 ? whole_warp : 0xfffffffeu, p.from[thread()], 0);
}

void different_operations(Params p) {
  if (thread() % 2 == 0) __syncwarp();
  else p.to[thread()] = __shfl_xor_sync(whole_warp, p.from[thread()], 1);
}

void foreign_lane(Params p) {
  if (thread() % 32 < 16) p.to[thread()] = __shfl_sync(0xffffu, p.from[thread()], 20);
}

void too_far(Params p) { shared_memory<float>()[thread() + 1] = p.from[thread()]; }

void same_place(Params p) { p.to[0] = p.from[thread()]; }

// from[4 i .. 4 i + 4) by cp.async, read by the next thread
template <bool waits, bool has_barrier, int shift>
void copied_neighbour(Params p) {
  float* shared = shared_memory<float>();
  if (thread() < threads / 4) copy_async(shared + 4 * thread() + shift, p.from + 4 * thread(), 16);
  commit_copies();
  if (waits) wait_for_copies<0>();
  if (has_barrier) __syncthreads();
  p.to[thread()] = shared[(thread() + 1) % threads];
}

template <int shift>
void load_matrix(Params p) {
  uint16_t* shared = shared_memory<uint16_t>();
  for (int i = thread(); i < 256 + 8; i += threads) shared[i] = uint16_t(i);
  __syncthreads();
  uint32_t x[4];
  load_matrices(x, shared + thread() % 32 * 8 + shift);
  // each lane holds two neighbours of row lane / 4 of matrix 2
  const int expected = 2 * 64 + thread() % 32 / 4 * 8 + thread() % 4 * 2;
  p.to[thread()] = x[2] == uint32_t(expected | (expected + 1) << 16) ? p.from[(thread() + 1) % threads] : -1;
}

// 16x16 by 16x8 of small whole numbers, against plain sums
void multiply(Params p) {
  const auto left = [](int row, int k) { return (row * 7 + k * 3) % 11 - 5; };
  const auto right = [](int k, int column) { return (k * 5 + column) % 7 - 3; };
  const int lane = thread() % 32, g = lane / 4, t = lane % 4;
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    const int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
    a[i] = pack<bfloat16>(float(left(row, k)), float(left(row, k + 1)));
    if (i < 2) b[i] = pack<bfloat16>(float(right(2 * t + 8 * i, g)), float(right(2 * t + 8 * i + 1, g)));
  }
  float c[4] = {1, 1, 1, 1};
  multiply_add<bfloat16>(c, a, b[0], b[1]);
  bool same = true;
  for (int i = 0; i < 4; ++i) {
    int sum = 1;
    for (int k = 0; k < 16; ++k) sum += left(g + i / 2 * 8, k) * right(k, 2 * t + i % 2);
    same = same && c[i] == float(sum);
  }
  p.to[thread()] = same ? p.from[(thread() + 1) % threads] : -1;
}

// every 16-bit number survives the way to float32 and back, and what lies halfway goes to the even one
void round_numbers(Params p) {
  bool same = true;
  for (int bits = thread(); bits < 0x7c00; bits += threads) {
    float16 half{uint16_t(bits)}, next{uint16_t(bits + 1)}, back;
    round_to(back, to_float(half));
    same = same && back.bits == bits;
    if (bits + 1 < 0x7c00) {
      round_to(back, 0.5f * (to_float(half) + to_float(next)));
      same = same && back.bits == (bits % 2 == 0 ? bits : bits + 1);
    }
  }
  p.to[thread()] = same ? p.from[(thread() + 1) % threads] : -1;
}

struct Planted {
  Kernel kernel;
  size_t shared_bytes;
  int64_t blocks;
};

const std::map<std::string, Planted> kernels = {
    {"neighbour", {neighbour<true>, threads * 4, 1}},
    {"no barrier", {neighbour<false>, threads * 4, 1}},
    {"neighbour in warp", {neighbour_in_warp<true>, threads * 4, 1}},
    {"shuffle for a fence", {neighbour_in_warp<false>, threads * 4, 1}},
    {"divergent barrier", {divergent_barrier, 0, 1}},
    {"lane left", {lane_left, 0, 1}},
    {"different masks", {different_masks, 0, 1}},
    {"different operations", {different_operations, 0, 1}},
    {"foreign lane", {foreign_lane, 0, 1}},
    {"past shared memory", {too_far, threads * 4, 1}},
    {"too much shared memory", {neighbour<true>, 102400, 1}},
    {"blocks write one place", {same_place, 0, 2}},
    {"copied neighbour", {copied_neighbour<true, true, 0>, threads * 4, 1}},
    {"copy without wait", {copied_neighbour<false, true, 0>, threads * 4, 1}},
    {"copy without barrier", {copied_neighbour<true, false, 0>, threads * 4, 1}},
    {"misaligned copy", {copied_neighbour<true, true, 2>, threads * 4 + 16, 1}},
    {"matrix", {load_matrix<0>, 528, 1}},
    {"misaligned matrix", {load_matrix<4>, 528, 1}},
    {"product", {multiply, 0, 1}},
    {"rounding", {round_numbers, 0, 1}},
};

}  // namespace

int main(int count, char** arguments) {
  const auto found = kernels.find(count == 2 ? arguments[1] : "");
  if (found == kernels.end()) {
    for (const auto& [name, kernel] : kernels) std::printf("%s\n", name.c_str());
    return 2;
  }
  std::vector<float> from(threads), to(threads, -1);
  for (int i = 0; i < threads; ++i) from[i] = float(i);
  const Planted& planted = found->second;
  launch("planted", planted.kernel, planted.blocks, threads, planted.shared_bytes, nullptr,
         Params{from.data(), to.data()});
  const bool in_warp = found->first == "neighbour in warp" || found->first == "shuffle for a fence";
  for (int i = 0; i < threads; ++i) {
    const int next = in_warp ? i / 32 * 32 + (i + 1) % 32 : (i + 1) % threads;
    if (to[i] != from[next]) return 1;
  }
}

// Runs CUDA kernels on the CPU, for tests: every CUDA thread is a fiber, and everything at which threads meet
// (__syncthreads, __syncwarp, shuffles, ldmatrix, mma) is a real meeting point.
//
// What it notices, and ends the process with exit code 86 for: threads that wait for each other for ever, barriers
// reached from different lines, lanes that meet in different operations or with different masks, a shuffle from a
// lane that does not take part, misaligned ldmatrix and cp.async, more shared memory than the smallest supported GPU
// has. Shared memory starts as NaN, has exactly the size asked for, and what cp.async copies arrives no sooner than
// its wait: until then its target is NaN. Built with ThreadSanitizer, fibers are threads to it, ordered by barriers
// alone (shuffles order nothing); built with AddressSanitizer, shared memory has guard zones.
//
// GMA_EMULATOR_ORDER: forward (default), reverse, or a number: the order in which fibers and blocks run, shuffled
// from that seed. GMA_EMULATOR_THREADS: OS threads that run blocks, 1 unless given. x86-64 with GCC or Clang only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#if defined(__SANITIZE_THREAD__)
#define GMA_UNSEEN __attribute__((no_sanitize("thread")))
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#else
#define GMA_UNSEEN
#endif

namespace gma {
namespace emulator {

// While one lives, ThreadSanitizer does not see what its fiber reads and writes: the emulator's own memory.
struct Unseen {
#if defined(__SANITIZE_THREAD__)
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unseen() {}
#endif
};

struct Index {
  unsigned x, y, z;
};

constexpr size_t shared_limit = 101376;  // of one block, compute capability 12.0: the least of those supported
constexpr int largest_deposit = 64;

// What every lane of a warp brings to a meeting, and takes home from it.
struct Meeting {
  alignas(16) unsigned char brought[32][largest_deposit], taken[32][largest_deposit];
};

unsigned thread_index();
unsigned block_index();
unsigned block_size();
unsigned lane_index();
void* shared_memory();
[[noreturn]] void fail(const std::string& reason);

void meet_block(int site);
// Waits for the lanes of `mask`. The last to arrive calls combine, then all go on. Orders memory only if `fence`.
void meet_warp(unsigned mask, int kind, bool fence, const std::function<void(Meeting&)>& combine);
Meeting& meeting();

void copy_async(void* shared, const void* global, int bytes);
void commit_copies();
void wait_for_copies(int groups_left);

// Runs body() in every thread of every block.
void run(int64_t blocks, int threads, size_t shared_bytes, const std::function<void()>& body);

// Every lane of `mask` brings a value; combine(brought, taken) of all 32, then every lane takes its own.
template <class Brought, class Taken, class Combine>
Taken exchange(unsigned mask, int kind, const Brought& mine, const Combine& combine) {
  static_assert(sizeof(Brought) <= largest_deposit && sizeof(Taken) <= largest_deposit);
  const Unseen unseen;
  const unsigned lane = lane_index();
  std::memcpy(meeting().brought[lane], &mine, sizeof mine);
  meet_warp(mask, kind, false, [&](Meeting& warp) {
    Brought brought[32];
    Taken taken[32];
    for (int i = 0; i < 32; ++i) std::memcpy(&brought[i], warp.brought[i], sizeof(Brought));
    combine(brought, taken);
    for (int i = 0; i < 32; ++i)
      if (mask >> i & 1) std::memcpy(warp.taken[i], &taken[i], sizeof(Taken));
  });
  Taken mine_now;
  std::memcpy(&mine_now, meeting().taken[lane], sizeof(Taken));
  return mine_now;
}

enum Kind { sync_kind, shuffle_kind, matrix_kind, product_kind };

template <class T>
T shuffle(unsigned mask, T value, int from) {
  struct Pair {
    T value;
    int from;
  };
  if (from < 0 || from > 31 || !(mask >> from & 1)) fail("shuffle from a lane that does not take part");
  return exchange<Pair, T>(mask, shuffle_kind, Pair{value, from}, [](const Pair* brought, T* taken) {
    for (int lane = 0; lane < 32; ++lane) taken[lane] = brought[brought[lane].from & 31].value;
  });
}

}  // namespace emulator
}  // namespace gma

#define threadIdx (::gma::emulator::Index{::gma::emulator::thread_index(), 0, 0})
#define blockIdx (::gma::emulator::Index{::gma::emulator::block_index(), 0, 0})
#define blockDim (::gma::emulator::Index{::gma::emulator::block_size(), 1, 1})
#define __syncthreads() ::gma::emulator::meet_block(__LINE__)

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  gma::emulator::meet_warp(mask, gma::emulator::sync_kind, true, [](gma::emulator::Meeting&) {});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return gma::emulator::shuffle(mask, value, int(gma::emulator::lane_index()) ^ distance);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return gma::emulator::shuffle(mask, value, from);
}

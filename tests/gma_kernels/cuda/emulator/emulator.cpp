#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace gma {
namespace emulator {
namespace {

constexpr size_t stack_bytes = 256 << 10, page_bytes = 4096;

enum class State : char { ready = 'r', at_block_barrier = 'b', at_warp_meeting = 'w', done = 'd' };

struct Copy {
  unsigned char* target;
  unsigned char bytes[16];
};

struct Fiber {
  int index = 0;
  State state = State::ready;
  void* stack_pointer = nullptr;
  void* stack = nullptr;
  unsigned mask = 0, block_meetings = 0, fences = 0;
  int kind = 0;
  std::vector<std::vector<Copy>> copies{1};  // the last group is still open
  void* sanitizer_fiber = nullptr;
};

struct Warp {
  Meeting meeting;
  unsigned arrived = 0;
  char fence[2];  // addresses ThreadSanitizer knows a barrier by; odd and even ones differ
};

struct Block {
  unsigned index = 0, threads = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::unique_ptr<unsigned char[]> shared;
  const std::function<void()>* body = nullptr;
  void* scheduler = nullptr;  // its stack pointer while a fiber runs
  void* sanitizer_scheduler = nullptr;
  std::vector<void*> sanitizer_fibers;
  int alive = 0, at_barrier = 0, barrier_site = 0;
  char barrier[2], started, finished;
};

thread_local Block* block = nullptr;
thread_local Fiber* fiber = nullptr;

#if defined(__SANITIZE_ADDRESS__)
thread_local const void* scheduler_stack;
thread_local size_t scheduler_stack_bytes;
#endif

#if defined(__SANITIZE_THREAD__)
void release(char* address) { __tsan_release(address); }
void acquire(char* address) { __tsan_acquire(address); }
#else
void release(char*) {}
void acquire(char*) {}
#endif

extern "C" void gma_switch_stack(void** save, void* load);
asm(R"(
.text
.globl gma_switch_stack
.type gma_switch_stack, @function
gma_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gma_switch_stack, .-gma_switch_stack
)");

GMA_UNSEEN void back_to_scheduler() {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(block->sanitizer_scheduler, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(fiber->state == State::done ? nullptr : &fake_stack, scheduler_stack,
                                 scheduler_stack_bytes);
#endif
  gma_switch_stack(&fiber->stack_pointer, block->scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

GMA_UNSEEN void resume(Fiber& next) {
  fiber = &next;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(next.sanitizer_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, next.stack, stack_bytes);
#endif
  gma_switch_stack(&block->scheduler, next.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

GMA_UNSEEN void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  acquire(&block->started);
  (*block->body)();
  release(&block->finished);
  fiber->state = State::done;
  back_to_scheduler();
  std::abort();
}

// with a guard page below; kept for the next block
void* stack_of(size_t number) {
  static thread_local std::vector<char*> stacks;
  while (stacks.size() <= number) {
    void* memory = mmap(nullptr, stack_bytes + page_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for the stack of a fiber");
    mprotect(memory, page_bytes, PROT_NONE);
    stacks.push_back(static_cast<char*>(memory) + page_bytes);
  }
  return stacks[number];
}

void prepare(Fiber& next, int index) {
  next.index = index;
  next.stack = stack_of(index);
  // what gma_switch_stack expects: six registers and the address to return to, below that of a caller there is not
  auto** top = reinterpret_cast<void**>(static_cast<char*>(next.stack) + stack_bytes) - 1;
  *--top = reinterpret_cast<void*>(&fiber_main);
  next.stack_pointer = top - 6;
#if defined(__SANITIZE_THREAD__)
  // making one is slow: they are kept for the thread's next block, which comes after this one anyway
  while (int(block->sanitizer_fibers.size()) <= index) block->sanitizer_fibers.push_back(__tsan_create_fiber(0));
  next.sanitizer_fiber = block->sanitizer_fibers[index];
#endif
}

struct Order {
  bool reverse = false, shuffled = false;
  std::minstd_rand random;

  explicit Order(int64_t salt) {
    const char* name = std::getenv("GMA_EMULATOR_ORDER");
    if (name == nullptr || std::strcmp(name, "forward") == 0) return;
    reverse = std::strcmp(name, "reverse") == 0;
    shuffled = !reverse;
    random.seed(unsigned(std::atoi(name) + 7919 * salt + 1));
  }

  template <class T>
  void apply(std::vector<T>& items) {
    if (shuffled) std::shuffle(items.begin(), items.end(), random);
  }
};

GMA_UNSEEN void run_block(Block& running, Order& order) {
  block = &running;
  const int threads = int(running.threads);
  running.fibers = std::vector<Fiber>(threads);
  running.warps = std::vector<Warp>((threads + 31) / 32);
  running.alive = threads;
  running.at_barrier = 0;
  std::vector<int> turn(threads);
  for (int i = 0; i < threads; ++i) {
    prepare(running.fibers[i], i);
    turn[i] = order.reverse ? threads - 1 - i : i;
  }
#if defined(__SANITIZE_THREAD__)
  running.sanitizer_scheduler = __tsan_get_current_fiber();
#endif
  release(&running.started);
  while (running.alive > 0) {
    bool progress = false;
    order.apply(turn);
    for (const int i : turn) {
      Fiber& next = running.fibers[i];
      if (next.state != State::ready) continue;
      progress = true;
      resume(next);
      if (next.state == State::done) --running.alive;
    }
    if (running.at_barrier > 0 && running.at_barrier == running.alive) {
      running.at_barrier = 0;
      for (Fiber& waiting : running.fibers)
        if (waiting.state == State::at_block_barrier) waiting.state = State::ready;
      progress = true;
    }
    if (!progress && running.alive > 0) fail("threads wait for each other for ever");
  }
  acquire(&running.finished);
}

}  // namespace

unsigned thread_index() { return unsigned(fiber->index); }
unsigned block_index() { return block->index; }
unsigned block_size() { return block->threads; }
unsigned lane_index() { return unsigned(fiber->index) & 31; }
void* shared_memory() { return block->shared.get(); }
Meeting& meeting() { return block->warps[fiber->index / 32].meeting; }

void fail(const std::string& reason) {
  std::fprintf(stderr, "emulator: %s", reason.c_str());
  if (block != nullptr) {
    std::fprintf(stderr, " (block %u, thread %d; threads:", block->index, fiber == nullptr ? -1 : fiber->index);
    for (const Fiber& each : block->fibers) std::fputc(char(each.state), stderr);
    std::fprintf(stderr, ")");
  }
  std::fprintf(stderr, "\n");
  std::_Exit(86);
}

GMA_UNSEEN void meet_block(int site) {
  if (block->at_barrier > 0 && block->barrier_site != site) fail("threads reach __syncthreads on different lines");
  block->barrier_site = site;
  char* address = &block->barrier[fiber->block_meetings++ & 1];
  release(address);
  fiber->state = State::at_block_barrier;
  ++block->at_barrier;
  back_to_scheduler();
  acquire(address);
}

GMA_UNSEEN void meet_warp(unsigned mask, int kind, bool fence, const std::function<void(Meeting&)>& combine) {
  const int warp_index = fiber->index / 32, lane = fiber->index & 31;
  Warp& warp = block->warps[warp_index];
  if (!(mask >> lane & 1)) fail("a lane is not in its own mask");
  char* address = fence ? &warp.fence[fiber->fences++ & 1] : nullptr;
  if (fence) release(address);
  fiber->mask = mask;
  fiber->kind = kind;
  warp.arrived |= 1u << lane;
  if ((warp.arrived & mask) == mask) {
    for (int other = 0; other < 32; ++other) {
      if (!(mask >> other & 1)) continue;
      Fiber& arrived = block->fibers[warp_index * 32 + other];
      if (arrived.mask != mask) fail("lanes meet with different masks");
      if (arrived.kind != kind) fail("lanes meet in different operations");
      arrived.state = State::ready;
    }
    warp.arrived &= ~mask;
    combine(warp.meeting);
  } else {
    fiber->state = State::at_warp_meeting;
    back_to_scheduler();
  }
  if (fence) acquire(address);
}

// Not hidden from the sanitizers: the copy reads and writes as the thread that asked for it.
void copy_async(void* shared, const void* global, int bytes) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) fail("cp.async to a misaligned address");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(global) % 16 != 0) fail("cp.async from a misaligned address");
  Copy copy{static_cast<unsigned char*>(shared), {}};
  if (bytes > 0) std::memcpy(copy.bytes, global, size_t(bytes));
  std::memset(shared, 0xff, 16);
  fiber->copies.back().push_back(copy);
}

void commit_copies() { fiber->copies.emplace_back(); }

void wait_for_copies(int groups_left) {
  auto& groups = fiber->copies;
  while (int(groups.size()) - 1 > groups_left) {
    for (const Copy& copy : groups.front()) std::memcpy(copy.target, copy.bytes, 16);
    groups.erase(groups.begin());
  }
}

void run(int64_t blocks, int threads, size_t shared_bytes, const std::function<void()>& body) {
  if (threads % 32 != 0) fail("a block of " + std::to_string(threads) + " threads; expected whole warps");
  if (shared_bytes > shared_limit)
    fail(std::to_string(shared_bytes) + " bytes of shared memory; a GPU may have " + std::to_string(shared_limit));
  std::vector<int64_t> turn(blocks);
  Order block_order(0);
  for (int64_t i = 0; i < blocks; ++i) turn[i] = block_order.reverse ? blocks - 1 - i : i;
  block_order.apply(turn);
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    Block running;
    running.threads = unsigned(threads);
    running.body = &body;
    for (int64_t i; (i = next++) < blocks;) {
      Order order(turn[i] + 1);
      running.index = unsigned(turn[i]);
      running.shared.reset(new unsigned char[shared_bytes]);
      std::memset(running.shared.get(), 0xff, shared_bytes);
      run_block(running, order);
    }
#if defined(__SANITIZE_THREAD__)
    for (void* done : running.sanitizer_fibers) __tsan_destroy_fiber(done);
#endif
    block = nullptr;
    fiber = nullptr;
  };
  const char* workers = std::getenv("GMA_EMULATOR_THREADS");
  std::vector<std::thread> others;
  for (int i = 1; i < (workers == nullptr ? 1 : std::atoi(workers)); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace emulator
}  // namespace gma

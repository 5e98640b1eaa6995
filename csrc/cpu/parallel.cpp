#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

namespace gma {
namespace {

class Scratch {
 public:
  ~Scratch() { std::free(block_); }

  // what one very long sentence needed is not kept for the life of the thread
  void give_back_excess() {
    if (size_ <= kept_bytes) return;
    std::free(block_);
    block_ = nullptr;
    size_ = 0;
  }

  // nullptr when memory runs out
  void* reserve(int64_t bytes) {
    if (bytes > size_ || block_ == nullptr) {
      std::free(block_);
      size_ = (bytes + 4095) / 4096 * 4096 + 4096;
      if (posix_memalign(&block_, 64, size_t(size_)) != 0) {
        block_ = nullptr;
        size_ = 0;
      }
    }
    return block_;
  }

 private:
  static constexpr int64_t kept_bytes = int64_t(64) << 20;
  void* block_ = nullptr;
  int64_t size_ = 0;
};

thread_local Scratch thread_scratch;

// A thread's own tasks: neighbours, which are heads of one sentence and share its pages; and the same ones in the
// next call of that shape, whose memory its cache may still hold.
struct alignas(64) Share {
  std::atomic<int64_t> next;
  int64_t end;
};

struct Work {
  std::vector<Share> shares;
  int64_t scratch_bytes;
  void (*task)(const void*, int64_t, void*);
  const void* state;
  std::atomic<size_t> arrived{0};
  std::atomic<bool> out_of_memory{false};
};

// One thread's part: its own share, then what is left of the others'.
void drain(void* opaque) {
  Work& work = *static_cast<Work*>(opaque);
  void* scratch = thread_scratch.reserve(work.scratch_bytes);
  if (scratch == nullptr) {
    work.out_of_memory = true;
    return;
  }
  const size_t own = work.arrived++;
  for (size_t i = 0; i < work.shares.size(); ++i) {
    Share& share = work.shares[(own + i) % work.shares.size()];
    for (int64_t index; (index = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;)
      work.task(work.state, index, scratch);
  }
  thread_scratch.give_back_excess();
}

}  // namespace

void run_tasks(const Parallel& parallel, int64_t tasks, int64_t scratch_bytes,
               void (*task)(const void*, int64_t, void*), const void* state) {
  const int64_t workers = std::min<int64_t>(parallel.threads, tasks);
  Work work{std::vector<Share>(size_t(workers)), scratch_bytes, task, state};
  for (int64_t i = 0; i < workers; ++i) {
    work.shares[size_t(i)].next = tasks * i / workers;
    work.shares[size_t(i)].end = tasks * (i + 1) / workers;
  }
  if (workers > 1) {
    parallel.run(int(workers), drain, &work);
  } else if (tasks > 0) {
    drain(&work);
  }
  if (work.out_of_memory) throw std::bad_alloc();
}

}  // namespace gma

#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace gma {
namespace {

class Scratch {
 public:
  ~Scratch() { std::free(block_); }

  // the memory of one very long sentence is not kept for the life of the thread
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

// The tasks of one thread. They are neighbours: heads of one sentence, which share its pages. In the next call of the
// same shape they are mostly the same ones again, whose memory the thread's cache may still hold.
class alignas(64) Share {
 public:
  void assign(int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    begin_ = begin;
    end_ = end;
  }

  // Takes a few of the first tasks, fewer towards the end. Not one by one: locking waits until everything that the
  // thread wrote has reached its cache.
  bool take_some(int64_t& begin, int64_t& end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begin_ == end_) return false;
    begin = begin_;
    end = begin_ += (end_ - begin_ + 15) / 16;
    return true;
  }

  // Takes the last half of what is left, for a thread that has run out of tasks.
  bool take_half(int64_t& begin, int64_t& end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begin_ == end_) return false;
    end = end_;
    begin = end_ -= (end_ - begin_ + 1) / 2;
    return true;
  }

 private:
  std::mutex mutex_;
  int64_t begin_ = 0, end_ = 0;
};

struct Work {
  std::vector<Share> shares;
  int64_t scratch_bytes;
  void (*task)(const void*, int64_t, void*);
  const void* state;
  std::atomic<size_t> arrived{0};
  std::atomic<bool> out_of_memory{false};
};

// Gives a thread half of what another has left; false if nothing is left anywhere.
bool take_over(std::vector<Share>& shares, size_t own) {
  for (size_t i = 1; i < shares.size(); ++i) {
    int64_t begin, end;
    if (!shares[(own + i) % shares.size()].take_half(begin, end)) continue;
    shares[own].assign(begin, end);
    return true;
  }
  return false;
}

// One thread's part.
void drain(void* opaque) {
  Work& work = *static_cast<Work*>(opaque);
  void* scratch = thread_scratch.reserve(work.scratch_bytes);
  if (scratch == nullptr) {
    work.out_of_memory = true;
    return;
  }
  std::memset(scratch, 0, std::min<size_t>(zeroed_scratch_bytes, size_t(work.scratch_bytes)));
  const size_t own = work.arrived++;
  do {
    for (int64_t index, end; work.shares[own].take_some(index, end);)
      for (; index < end; ++index) work.task(work.state, index, scratch);
  } while (take_over(work.shares, own));
  thread_scratch.give_back_excess();
}

}  // namespace

void run_tasks(const Parallel& parallel, int64_t tasks, int64_t scratch_bytes,
               void (*task)(const void*, int64_t, void*), const void* state) {
  const int64_t workers = std::min<int64_t>(parallel.threads, tasks);
  Work work{std::vector<Share>(size_t(workers)), scratch_bytes, task, state};
  for (int64_t i = 0; i < workers; ++i) work.shares[size_t(i)].assign(tasks * i / workers, tasks * (i + 1) / workers);
  if (workers > 1) {
    parallel.run(int(workers), drain, &work);
  } else if (tasks > 0) {
    drain(&work);
  }
  if (work.out_of_memory) throw std::bad_alloc();
}

}  // namespace gma

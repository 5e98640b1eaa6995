#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

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

struct Queue {
  int64_t tasks, grain, scratch_bytes;
  void (*task)(const void*, int64_t, void*);
  const void* state;
  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};
};

void drain(void* opaque) {
  Queue& queue = *static_cast<Queue*>(opaque);
  void* scratch = thread_scratch.reserve(queue.scratch_bytes);
  if (scratch == nullptr) {
    queue.out_of_memory = true;
    return;
  }
  for (int64_t first; (first = queue.next.fetch_add(queue.grain, std::memory_order_relaxed)) < queue.tasks;)
    for (int64_t index = first; index < std::min(first + queue.grain, queue.tasks); ++index)
      queue.task(queue.state, index, scratch);
  thread_scratch.give_back_excess();
}

}  // namespace

void run_tasks(const Parallel& parallel, int64_t tasks, int64_t scratch_bytes,
               void (*task)(const void*, int64_t, void*), const void* state) {
  // neighbours are heads of one sentence, whose rows share pages: better one thread for some of them
  const int64_t grain = std::clamp<int64_t>(tasks / 32, 1, 8);
  Queue queue{tasks, grain, scratch_bytes, task, state};
  const int workers = int(std::min<int64_t>(parallel.threads, tasks));
  if (workers > 1) {
    parallel.run(workers, drain, &queue);
  } else if (tasks > 0) {
    drain(&queue);
  }
  if (queue.out_of_memory) throw std::bad_alloc();
}

}  // namespace gma

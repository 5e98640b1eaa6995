#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace gma {
namespace {

constexpr size_t page_bytes = 4096, huge_page_bytes = size_t(2) << 20;
constexpr size_t most_bytes = size_t(1) << 46;  // nobody has more, and rounding up far more would overflow

// At least eight sizes for every doubling, so that sentences of nearly equal length share blocks. Rounding up takes
// address space only: pages that nobody writes cost nothing.
size_t size_class(size_t bytes) {
  size_t step = page_bytes;
  while (step * 16 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

void* map(size_t bytes) {
  // huge pages must begin at multiples of their size
  const size_t slack = bytes >= huge_page_bytes ? huge_page_bytes : 0;
  void* mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  char* const begin = static_cast<char*>(mapped);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % huge_page_bytes;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, slack - before);
#if defined(MADV_HUGEPAGE)
  madvise(begin + before, bytes, MADV_HUGEPAGE);
#endif
  return begin + before;
}

size_t limit_from_environment() {
  const char* megabytes = std::getenv("GMA_POOL_MB");
  return size_t(megabytes != nullptr && *megabytes != '\0' ? std::strtoull(megabytes, nullptr, 10) : 256) << 20;
}

class Pool {
 public:
  Pool() { blocks_.reserve(most_blocks); }

  void* take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // the most recently used one is most likely still in the cache
      for (auto block = blocks_.end(); block != blocks_.begin();) {
        if ((--block)->bytes != bytes) continue;
        void* const data = block->data;
        kept_ -= bytes;
        blocks_.erase(block);
        return data;
      }
    }
    return map(bytes);
  }

  // Allocates nothing, so that it cannot fail: a tensor's deleter calls it.
  void give(void* data, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.size() == most_blocks) drop_oldest();
    blocks_.push_back({data, bytes});
    kept_ += bytes;
    while (kept_ > limit_) drop_oldest();
  }

  size_t kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

  // a child of fork() must not inherit a lock held by a thread that it does not have
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Block {
    void* data;
    size_t bytes;
  };

  void drop_oldest() {
    munmap(blocks_.front().data, blocks_.front().bytes);
    kept_ -= blocks_.front().bytes;
    blocks_.erase(blocks_.begin());
  }

  static constexpr size_t most_blocks = 4096;
  std::mutex mutex_;
  std::vector<Block> blocks_;  // least recently used first
  size_t kept_ = 0;
  const size_t limit_ = limit_from_environment();
};

// never destroyed: tensors may die after everything else
Pool& pool = *new Pool;
const int fork_handlers = pthread_atfork([] { pool.lock(); }, [] { pool.unlock(); }, [] { pool.unlock(); });

}  // namespace

void* take_block(size_t bytes) {
  if (bytes >= smallest_pooled_bytes) return bytes <= most_bytes ? pool.take(size_class(bytes)) : nullptr;
  void* block = nullptr;
  // at least one byte: for none the result may be null
  return posix_memalign(&block, 64, bytes > 0 ? bytes : 1) == 0 ? block : nullptr;
}

void give_block(void* block, size_t bytes) {
  bytes >= smallest_pooled_bytes ? pool.give(block, size_class(bytes)) : std::free(block);
}

size_t kept_block_bytes() { return pool.kept(); }

}  // namespace gma

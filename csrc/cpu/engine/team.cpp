#include "team.h"

#include <sched.h>

#include <exception>

namespace gma {
namespace engine {
namespace {

// Waits a moment: short ones by looking again, but whoever waits for long may stand in the way of what it waits for,
// where there are more threads than cores.
class Patience {
 public:
  void wait() {
    if (++looks_ > most_looks) {
      sched_yield();
      return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  void renew() { looks_ = 0; }

 private:
  static constexpr int most_looks = 1000;
  int looks_ = 0;
};

uint64_t ticket(uint32_t loop, int64_t begin, int64_t end) {
  return uint64_t(loop) << 32 | uint64_t(begin) << 16 | uint64_t(end);
}
int64_t begin_of(uint64_t left) { return int64_t(left >> 16 & 0xffff); }
int64_t end_of(uint64_t left) { return int64_t(left & 0xffff); }

}  // namespace

void Team::start(const Parallel& parallel, void (*lead)(Team&, const void*), const void* state) {
  if (threads_ == 1) return lead(*this, state);
  struct Attempt {
    Team* team;
    void (*lead)(Team&, const void*);
    const void* state;
    std::exception_ptr failure;
  } attempt{this, lead, state, nullptr};
  lead_state_ = &attempt;
  lead_ = [](Team& team, const void* opaque) {
    Attempt& attempt = *static_cast<Attempt*>(const_cast<void*>(opaque));
    // an exception must not leave a thread of the caller's pool
    try {
      attempt.lead(team, attempt.state);
    } catch (...) {
      attempt.failure = std::current_exception();
    }
  };
  parallel.run(threads_, [](void* team) { static_cast<Team*>(team)->enter(); }, this);
  if (attempt.failure) std::rethrow_exception(attempt.failure);
}

void Team::enter() {
  const int thread = entered_++;
  if (thread > 0) return help(thread);
  lead_(*this, lead_state_);
  finished_.store(true, std::memory_order_release);
}

void Team::help(int thread) {
  Patience patience;
  while (!finished_.load(std::memory_order_acquire)) {
    uint64_t left = left_.load(std::memory_order_acquire);
    const int64_t begin = begin_of(left), end = end_of(left);
    if (begin == end) {
      patience.wait();
      continue;
    }
    // having taken a task keeps the loop, and what it points to, alive
    if (!left_.compare_exchange_strong(left, left - 1, std::memory_order_acq_rel)) continue;
    function_(state_, end - 1, thread);
    done_.fetch_add(1, std::memory_order_release);
    patience.renew();
  }
}

void Team::each(int64_t tasks, Function function, const void* state) {
  if (threads_ == 1 || tasks < 2) {
    for (int64_t index = 0; index < tasks; ++index) function(state, index, 0);
    return;
  }
  function_ = function;
  state_ = state;
  done_.store(0, std::memory_order_relaxed);
  uint64_t left = ticket(++loop_, 0, tasks);
  left_.store(left, std::memory_order_release);
  int64_t own = 0;
  for (;;) {
    const int64_t begin = begin_of(left);
    if (begin == end_of(left)) break;
    if (!left_.compare_exchange_weak(left, left + (1 << 16), std::memory_order_acq_rel)) continue;
    left += 1 << 16;
    function(state, begin, 0);
    ++own;
    left = left_.load(std::memory_order_acquire);
  }
  Patience patience;
  while (done_.load(std::memory_order_acquire) + own < tasks) patience.wait();
}

}  // namespace engine
}  // namespace gma

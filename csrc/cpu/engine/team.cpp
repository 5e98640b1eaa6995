#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace gma {
namespace engine {
namespace {

// nanoseconds
constexpr int64_t late = 100'000;             // for a task, beyond what its leader took for its own
constexpr int64_t moment_alone = 50'000'000;  // after a thread was late

// looks that a thread takes before it lets go of its core: a step follows the last one within some fifty microseconds
constexpr int most_looks = 1000, most_looks_for_a_step = 4000;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t ticket(uint32_t loop, int64_t begin, int64_t end) {
  return uint64_t(loop) << 32 | uint64_t(begin) << 16 | uint64_t(end);
}
int64_t begin_of(uint64_t left) { return int64_t(left >> 16 & 0xffff); }
int64_t end_of(uint64_t left) { return int64_t(left & 0xffff); }

// until then, leaders work alone
std::atomic<int64_t> alone_until{0};

}  // namespace

// All threads that help, and who could use help.
class Helpers {
 public:
  // never destroyed: its threads end with the process
  static Helpers& all() {
    static Helpers* const helpers = new Helpers;
    return *helpers;
  }

  void offer(const std::shared_ptr<Team>& team) {
    bool wake;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (count_ < team->threads() - 1 && start()) ++count_;
      teams_.push_back(team);
      changes_.fetch_add(1, std::memory_order_release);
      wake = asleep_ > 0;
    }
    if (wake) came_.notify_all();
  }

  void withdraw(const std::shared_ptr<Team>& team) {
    const std::lock_guard<std::mutex> lock(mutex_);
    teams_.erase(std::find(teams_.begin(), teams_.end(), team));
  }

 private:
  // Whether there is one thread more; without it the work is done by fewer.
  bool start() {
    // signals are for the threads of the caller
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    bool started = true;
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void serve() {
    for (;;) {
      uint64_t seen;
      int thread = 0;
      std::shared_ptr<Team> team;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        seen = changes_.load(std::memory_order_relaxed);
        for (const std::shared_ptr<Team>& other : teams_) {
          if (other->entered_ == other->threads()) continue;
          team = other;
          thread = team->entered_++;
          break;
        }
      }
      if (team != nullptr) team->help(thread);
      else wait_for_change(seen);
    }
  }

  void wait_for_change(uint64_t seen) {
    for (int look = 0; look < most_looks_for_a_step; ++look) {
      if (changes_.load(std::memory_order_acquire) != seen) return;
      pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++asleep_;
    came_.wait(lock, [&] { return changes_.load(std::memory_order_relaxed) != seen; });
    --asleep_;
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::shared_ptr<Team>> teams_;
  int count_ = 0, asleep_ = 0;
  alignas(64) std::atomic<uint64_t> changes_{0};
};

Team::Team(int threads) : threads_(threads) { std::fegetenv(&arithmetic_); }

Team::Assembled::Assembled(int threads)
    : team(std::make_shared<Team>(threads <= 1 || now() < alone_until.load(std::memory_order_relaxed) ? 1 : threads)) {
  if (team->threads() > 1) Helpers::all().offer(team);
}

Team::Assembled::~Assembled() {
  if (team->threads() == 1) return;
  Helpers::all().withdraw(team);
  team->finished_.store(true, std::memory_order_release);
}

void Team::help(int thread) {
  std::fesetenv(&arithmetic_);
  int looks = 0;
  while (!finished_.load(std::memory_order_acquire)) {
    uint64_t left = left_.load(std::memory_order_acquire);
    const int64_t begin = begin_of(left), end = end_of(left);
    if (begin == end) {
      // whoever looks for long may stand in the way of what it waits for
      if (++looks < most_looks) pause();
      else std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    // having taken a task keeps the loop, and what it points to, alive
    if (!left_.compare_exchange_strong(left, left - 1, std::memory_order_acq_rel)) continue;
    function_(state_, end - 1, thread);
    done_.fetch_add(1, std::memory_order_release);
    looks = 0;
  }
}

void Team::each(int64_t tasks, Function function, const void* state) {
  if (threads_ == 1 || !shares_ || tasks < 2) {
    for (int64_t index = 0; index < tasks; ++index) function(state, index, 0);
    return;
  }
  const int64_t since = now();
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
    function(state, begin, 0);
    ++own;
    left = left_.load(std::memory_order_acquire);
  }
  if (own < tasks) wait_for_helpers(tasks - own, since);
}

void Team::wait_for_helpers(int64_t tasks, int64_t since) {
  for (int look = 0; done_.load(std::memory_order_acquire) < tasks; ++look) {
    if (look < most_looks) {
      pause();
      continue;
    }
    const int64_t began = now();
    while (done_.load(std::memory_order_acquire) < tasks) sched_yield();
    const int64_t end = now();
    if (end - began <= began - since + late) return;
    shares_ = false;
    alone_until.store(end + moment_alone, std::memory_order_relaxed);
    return;
  }
}

}  // namespace engine
}  // namespace gma

// The threads that work on one step: one of them leads, the others take tasks while there are some.
//
// A step is some thirty loops of a few microseconds. Threads are woken for the whole of it, and wait for the next loop
// by looking at one word. The leader waits for nobody but those who hold a task: a thread that is late, because the
// machine is busy, helps with what is left. One that was stopped while it held a task has cost more than it could gain:
// after that, for a moment, leaders work alone.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <memory>

#include "../../gaussian_attention.h"

namespace gma {
namespace engine {

class Team {
 public:
  // Calls lead(team) on this thread; others help until it returns. So many threads at most, this one included.
  template <class Lead>
  static void run(int threads, const Lead& lead) {
    const Assembled assembled(threads);
    lead(*assembled.team);
  }

  explicit Team(int threads);

  int threads() const { return threads_; }

  // Calls task(index, thread) once for every index below `tasks`, which are fewer than 2^16. Threads mostly get the
  // same ones every time: the leader the first ones. `task` must not throw.
  template <class Task>
  void each(int64_t tasks, const Task& task) {
    each(tasks, [](const void* state, int64_t index, int thread) { (*static_cast<const Task*>(state))(index, thread); },
         &task);
  }

 private:
  friend class Helpers;
  using Function = void (*)(const void* state, int64_t index, int thread);

  // One that others know of while this lives.
  struct Assembled {
    explicit Assembled(int threads);
    ~Assembled();
    // a helper may look at it once more after the end
    const std::shared_ptr<Team> team;
  };

  void help(int thread);
  void each(int64_t tasks, Function function, const void* state);
  void wait_for_helpers(int64_t tasks, int64_t since);

  const int threads_;
  int entered_ = 1;           // under the helpers' mutex
  std::fenv_t arithmetic_{};  // the leader's: how denormal numbers are treated decides about bits
  std::atomic<bool> finished_{false};

  // of the loop under way: its number (32 bits), the first task left and the end of those left (16 bits each)
  alignas(64) std::atomic<uint64_t> left_{0};
  uint32_t loop_ = 0;
  bool shares_ = true;
  Function function_ = nullptr;
  const void* state_ = nullptr;
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace engine
}  // namespace gma

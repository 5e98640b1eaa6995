// The threads that work on one step: one of them leads, the others take tasks while there are some.
//
// A step is some thirty loops of a few microseconds. Entering a parallel region for each would cost as much as the
// loops; one region is entered for all, in which the helpers wait for the next loop by looking at one word. The leader
// never waits for a helper to come: if none does, it does all tasks itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "../../gaussian_attention.h"

namespace gma {
namespace engine {

class Team {
 public:
  // Calls lead(team) on one of the caller's threads; the others help until it returns. What `lead` throws is rethrown.
  template <class Lead>
  static void run(const Parallel& parallel, const Lead& lead) {
    Team team(parallel.threads);
    team.start(parallel, [](Team& self, const void* state) { (*static_cast<const Lead*>(state))(self); }, &lead);
  }

  int threads() const { return threads_; }

  // Calls task(index, thread) once for every index below `tasks`, which are fewer than 2^16. Threads mostly get the
  // same ones every time: the leader the first ones. `task` must not throw.
  template <class Task>
  void each(int64_t tasks, const Task& task) {
    each(tasks, [](const void* state, int64_t index, int thread) { (*static_cast<const Task*>(state))(index, thread); },
         &task);
  }

 private:
  using Function = void (*)(const void* state, int64_t index, int thread);

  explicit Team(int threads) : threads_(threads < 1 ? 1 : threads) {}
  void start(const Parallel& parallel, void (*lead)(Team&, const void*), const void* state);
  void enter();
  void help(int thread);
  void each(int64_t tasks, Function function, const void* state);

  const int threads_;
  void (*lead_)(Team&, const void*) = nullptr;
  const void* lead_state_ = nullptr;
  std::atomic<int> entered_{0};
  std::atomic<bool> finished_{false};

  // of the loop under way: its number (32 bits), the first task left and the end of those left (16 bits each)
  alignas(64) std::atomic<uint64_t> left_{0};
  uint32_t loop_ = 0;
  Function function_ = nullptr;
  const void* state_ = nullptr;
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace engine
}  // namespace gma

// How Python calls the library beside torch's operators: plain C functions, which ctypes finds by name in every version
// of Python. Where one fails it returns `failed`, or no text, and gma_error says why.
#pragma once

#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#define GMA_EXPORT extern "C" __attribute__((visibility("default")))

namespace gma {
namespace exports {

constexpr int64_t failed = std::numeric_limits<int64_t>::min();

// kind: the name of Python's exception
void remember_error(const char* kind, const char* message) noexcept;

// This thread's, until its next call.
const char* keep_text(std::string text);

// What body() returns, as an integer, or 0 if it returns nothing.
template <class Body>
int64_t guarded(const Body& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return 0;
    } else if constexpr (std::is_pointer_v<decltype(body())>) {
      return static_cast<int64_t>(reinterpret_cast<intptr_t>(body()));
    } else {
      return static_cast<int64_t>(body());
    }
  } catch (const std::invalid_argument& error) {
    remember_error("ValueError", error.what());
  } catch (const std::bad_alloc& error) {
    remember_error("MemoryError", error.what());
  } catch (const std::exception& error) {
    remember_error("RuntimeError", error.what());
  }
  return failed;
}

template <class Body>
const char* guarded_text(const Body& body) noexcept {
  const char* text = nullptr;
  guarded([&] { text = keep_text(body()); });
  return text;
}

}  // namespace exports
}  // namespace gma

// Facts about the build and the machine, the choice of SIMD level, and what the pool keeps. Texts of more than one
// thing are JSON.

#include <sstream>

#include "cpu/pool.h"
#include "cuda/device.h"
#include "exports.h"
#include "gaussian_attention.h"

#ifndef GMA_BUILD_FLAGS
#define GMA_BUILD_FLAGS ""
#endif

namespace {

using namespace gma::exports;

thread_local std::string error_kind, error_message, kept_text;

std::string quoted(const std::string& text) {
  std::string found = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') found += '\\';
    found += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return found + '"';
}

std::string list(const std::vector<std::string>& items) {
  std::string found;
  for (const std::string& item : items) found += (found.empty() ? "" : ", ") + item;
  return "[" + found + "]";
}

std::string quoted_list(std::vector<std::string> items) {
  for (std::string& item : items) item = quoted(item);
  return list(items);
}

std::string build_facts() {
#if defined(__clang__)
  const char* const compiler = "clang " __clang_version__;
#else
  const char* const compiler = "gcc " __VERSION__;
#endif
#if defined(__x86_64__)
  const std::vector<std::string> levels{"avx512_bf16", "avx512", "avx2", "baseline"};
#else
  const std::vector<std::string> levels{"baseline"};
#endif
  return "{\"compiler\": " + quoted(compiler) + ", \"flags\": " + quoted(GMA_BUILD_FLAGS) +
         ", \"simd_levels\": " + quoted_list(levels) +
         ", \"cuda_architectures\": " + quoted(gma::cuda::architectures()) + "}";
}

// name and compute capability of each
std::string cuda_devices() {
  std::vector<gma::cuda::Device> devices;
  const std::string error = gma::cuda::find_devices(devices);
  if (!error.empty()) throw std::runtime_error(error);
  std::vector<std::string> found;
  for (const auto& device : devices)
    found.push_back(list({quoted(device.name), std::to_string(device.major), std::to_string(device.minor)}));
  return list(found);
}

}  // namespace

void gma::exports::remember_error(const char* kind, const char* message) noexcept {
  try {
    error_kind = kind, error_message = message;
  } catch (const std::bad_alloc&) {
    // both are short enough to need no memory
    error_kind = "MemoryError", error_message = "";
  }
}

const char* gma::exports::keep_text(std::string text) {
  kept_text = std::move(text);
  return kept_text.c_str();
}

// of this thread's latest call that failed
GMA_EXPORT const char* gma_error_kind() { return error_kind.c_str(); }
GMA_EXPORT const char* gma_error() { return error_message.c_str(); }

GMA_EXPORT const char* gma_build_facts() { return guarded_text(build_facts); }
GMA_EXPORT const char* gma_cuda_devices() { return guarded_text(cuda_devices); }
GMA_EXPORT const char* gma_simd_level() { return guarded_text(gma::simd_level); }
GMA_EXPORT const char* gma_simd_levels() {
  return guarded_text([] { return quoted_list(gma::simd_levels()); });
}
GMA_EXPORT int64_t gma_use_simd(const char* level) {
  return guarded([&] { gma::use_simd(level); });
}
GMA_EXPORT int64_t gma_kept_block_bytes() { return guarded(gma::kept_block_bytes); }

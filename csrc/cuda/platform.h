// The one place that knows whether a GPU or the tests' emulator runs the kernels.
//
// A kernel takes one struct by value and finds its shared memory by shared_memory<T>(); threads meet only in
// __syncthreads, shuffles and the wrappers of mma.h and async_copy.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <cmath>

#include "emulator.h"
#endif

#define GMA_DEVICE static __device__ __forceinline__

namespace gma {
namespace cuda {

constexpr unsigned whole_warp = 0xffffffffu;
constexpr int64_t most_blocks = (int64_t(1) << 31) - 1;
// of one block, on the part of all served that has least
constexpr int most_shared_bytes = 99 << 10;

#if defined(__CUDACC__)

template <class T>
GMA_DEVICE T* shared_memory() {
  extern __shared__ __align__(16) unsigned char gma_shared[];
  return reinterpret_cast<T*>(gma_shared);
}

// The same number, of which the compiler knows nothing: what is made of it is made where it is used, and takes no
// registers before.
GMA_DEVICE int made_anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class Params>
cudaError_t start(void (*kernel)(Params), int64_t blocks, int threads, size_t shared_bytes, void* stream,
                  const Params& params) {
  // forgets what an earlier call left, which is no error of this launch
  cudaGetLastError();
  if (shared_bytes > 48 << 10) {
    // always the same number: the limit is one for all threads, and must not be lowered between another's two calls
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes);
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(params);
  return cudaGetLastError();
}

inline std::string error_text(cudaError_t error) {
  return error == cudaSuccess ? "" : std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

#else

template <class T>
T* shared_memory() {
  return static_cast<T*>(emulator::shared_memory());
}

inline int made_anew(int x) { return x; }

template <class Params>
std::string start(void (*kernel)(Params), int64_t blocks, int threads, size_t shared_bytes, void*,
                  const Params& params) {
  emulator::run(blocks, threads, shared_bytes, [&] { kernel(params); });
  return "";
}

inline std::string error_text(const std::string& error) { return error; }

#endif

// Enqueues a kernel; "" or the reason why it could not be. No blocks is nothing to do.
template <class Params>
std::string launch(const char* name, void (*kernel)(Params), int64_t blocks, int threads, size_t shared_bytes,
                   void* stream, const Params& params) {
  if (blocks == 0) return "";
  if (blocks > most_blocks)
    return std::string("the CUDA kernel '") + name + "' would need " + std::to_string(blocks) +
           " blocks of threads; a launch has at most " + std::to_string(most_blocks) + ", split the batch";
  const std::string error = error_text(start(kernel, blocks, threads, shared_bytes, stream, params));
  return error.empty() ? "" : std::string("the CUDA kernel '") + name + "' could not be started: " + error;
}

}  // namespace cuda
}  // namespace gma

// Says how every CUDA kernel is launched: mangled name, dtype, head size, threads of a block, bytes of shared memory.
//
// Linked with the compiled kernels in place of the CUDA runtime, whose entry points below only take notes. So the sizes
// are those the launchers really ask for, and no GPU is needed.

#include <cstdio>
#include <map>
#include <string>

#include "cuda/launch.h"

namespace {

struct Extent {
  unsigned x, y, z;
};

struct Launch {
  Extent blocks, threads;
  size_t shared_bytes;
  void* stream;
};

std::map<const void*, std::string>& kernel_names() {
  static std::map<const void*, std::string> names;
  return names;
}

Launch next_launch;
const char* dtype = "";
const int32_t some_first = 0;
int head_size = 0;

int record(const void* kernel, Extent threads, size_t shared_bytes) {
  std::printf("%s %s %d %u %zu\n", kernel_names().at(kernel).c_str(), dtype, head_size, threads.x, shared_bytes);
  return 0;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  kernel_names()[kernel] = name;
}

unsigned __cudaPushCallConfiguration(Extent blocks, Extent threads, size_t shared_bytes, void* stream) {
  next_launch = {blocks, threads, shared_bytes, stream};
  return 0;
}

int __cudaPopCallConfiguration(Extent* blocks, Extent* threads, size_t* shared_bytes, void* stream) {
  *blocks = next_launch.blocks;
  *threads = next_launch.threads;
  *shared_bytes = next_launch.shared_bytes;
  *static_cast<void**>(stream) = next_launch.stream;
  return 0;
}

int __cudaGetKernel(const void** handle, const void* kernel) {
  *handle = kernel;
  return 0;
}

int __cudaLaunchKernel(const void* kernel, Extent, Extent threads, void**, size_t shared_bytes, void*) {
  return record(kernel, threads, shared_bytes);
}

// before CUDA 12.8
int cudaLaunchKernel(const void* kernel, Extent, Extent threads, void**, size_t shared_bytes, void*) {
  return record(kernel, threads, shared_bytes);
}

int cudaFuncSetAttribute(const void*, int, int) { return 0; }
int cudaGetLastError() { return 0; }
const char* cudaGetErrorName(int) { return ""; }
const char* cudaGetErrorString(int) { return ""; }

}  // extern "C"

int main() {
  const std::pair<gma::ScalarType, const char*> dtypes[] = {{gma::ScalarType::float32, "float32"},
                                                            {gma::ScalarType::float16, "float16"},
                                                            {gma::ScalarType::bfloat16, "bfloat16"}};
  for (const auto& [scalar_type, name] : dtypes) {
    for (const int size : {32, 64, 128, 256}) {
      dtype = name;
      head_size = size;
      gma::BackwardParams p{};
      p.scalar_type = scalar_type;
      p.batches = 1;
      p.heads = 2;
      p.keys = 4096;
      p.head_size = p.value_size = size;
      for (const bool general : {false, true})
        for (const auto& [rows, drop_below] : {std::pair(4096, 0u), {4096, 1u}, {16, 0u}, {16, 1u}, {1, 0u}}) {
          // a left bound makes a call general
          p.first.data = general ? &some_first : nullptr;
          p.rows = rows;
          p.drop_below = drop_below;
          const std::string errors[] = {gma::cuda::forward(p, nullptr, nullptr),
                                        gma::cuda::backward(p, nullptr, nullptr),
                                        gma::cuda::attention_weights(p, nullptr, nullptr)};
          for (const std::string& error : errors) {
            if (error.empty()) continue;
            std::fprintf(stderr, "%s\n", error.c_str());
            return 1;
          }
        }
    }
  }
}

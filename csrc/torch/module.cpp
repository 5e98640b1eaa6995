// The Python module gma_kernels._C: facts about the build, the choice of SIMD level, what the pool keeps, the CUDA
// devices. No tensors. Importing it loads the library, which registers the operators' kernels.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <tuple>

#include "cpu/pool.h"
#include "cuda/device.h"
#include "gaussian_attention.h"

#ifndef GMA_BUILD_FLAGS
#define GMA_BUILD_FLAGS ""
#endif

// in engine.cpp
void bind_engine(pybind11::module_& module);

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  bind_engine(module);
  module.def("build_facts", [] {
    py::dict facts;
#if defined(__clang__)
    facts["compiler"] = "clang " __clang_version__;
#else
    facts["compiler"] = "gcc " __VERSION__;
#endif
    facts["flags"] = GMA_BUILD_FLAGS;
#if defined(__x86_64__)
    facts["simd_levels"] = std::vector<std::string>{"avx512_bf16", "avx512", "avx2", "baseline"};
#else
    facts["simd_levels"] = std::vector<std::string>{"baseline"};
#endif
    facts["cuda_architectures"] = gma::cuda::architectures();
    return facts;
  });
  module.def("simd_level", &gma::simd_level);
  module.def("simd_levels", &gma::simd_levels);
  module.def("use_simd", &gma::use_simd, py::arg("level"));
  module.def("kept_block_bytes", &gma::kept_block_bytes);
  // name and compute capability of each
  module.def("cuda_devices", [] {
    std::vector<gma::cuda::Device> devices;
    const std::string error = gma::cuda::find_devices(devices);
    if (!error.empty()) throw std::runtime_error(error);
    std::vector<std::tuple<std::string, int, int>> found;
    for (const auto& device : devices) found.emplace_back(device.name, device.major, device.minor);
    return found;
  });
}

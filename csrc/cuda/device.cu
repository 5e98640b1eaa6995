#include <cuda_runtime.h>

#include "device.h"

namespace gma {
namespace cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string error_text(cudaError_t error) {
  const std::string runtime = version_text(CUDART_VERSION);
  int driver = 0;
  switch (error) {
    case cudaSuccess: return "";
    // also what the runtime says where there is no driver at all
    case cudaErrorInsufficientDriver:
      cudaDriverGetVersion(&driver);
      if (driver == 0) return "no NVIDIA driver was found; install one for CUDA " + runtime + " or newer";
      return "the NVIDIA driver is one for CUDA " + version_text(driver) + ", and the extension was built with " +
             runtime + "; install a newer driver, or reinstall the extension with an older CUDA toolkit";
    case cudaErrorNoDevice:
      return "the NVIDIA driver shows no GPU; install one, or see nvidia-smi and CUDA_VISIBLE_DEVICES";
    default:
      return std::string(cudaGetErrorString(error)) + " (CUDA error " + std::to_string(error) +
             "); see nvidia-smi and reinstall the NVIDIA driver if it fails, too";
  }
}

}  // namespace

std::string architectures() { return GMA_CUDA_ARCHITECTURES; }

// asks only for what the driver knows without a context, which would take memory on every device
std::string find_devices(std::vector<Device>& devices) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count)) return error_text(error);
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index)) return error_text(error);
    devices.push_back({properties.name, properties.major, properties.minor});
  }
  return "";
}

// reports what earlier kernels have done wrong, too
std::string use_device(int index) {
  const cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess || error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice)
    return error_text(error);
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error) +
         "; an earlier kernel may have failed on this device: CUDA_LAUNCH_BLOCKING=1 shows which";
}

}  // namespace cuda
}  // namespace gma

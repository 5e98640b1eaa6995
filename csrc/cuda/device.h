// What this build has for CUDA and what this machine has. In a build without CUDA, absent.cpp stands in for device.cu.
#pragma once

#include <string>
#include <vector>

namespace gma {
namespace cuda {

struct Device {
  std::string name;
  int major, minor;  // compute capability
};

// The compute capabilities there are kernels for, as in "8.0;9.0+PTX"; "" in a build without CUDA.
std::string architectures();

// Both return "" or what is wrong and what to do about it. Those found have a driver, but need not suit the kernels.
std::string find_devices(std::vector<Device>& devices);
std::string use_device(int index);

}  // namespace cuda
}  // namespace gma

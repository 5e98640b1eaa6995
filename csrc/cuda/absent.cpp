// Stands in for device.cu in a build without CUDA.

#include "device.h"

namespace gma {
namespace cuda {

std::string architectures() { return ""; }

std::string find_devices(std::vector<Device>&) { return "the extension was built without CUDA"; }

}  // namespace cuda
}  // namespace gma

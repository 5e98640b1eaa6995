#include "decode_kernel.h"
#include "forward.h"

namespace gma {
namespace cuda {

template std::string launch_decode<true>(const ForwardParams&, const Split&, void*);

}  // namespace cuda
}  // namespace gma

#include "forward.h"
#include "forward_kernel.h"

namespace gma {
namespace cuda {

template std::string launch_forward<true>(const ForwardParams&, const Split&, void*);

}  // namespace cuda
}  // namespace gma

#include "backward_key_exchange.h"

namespace gma {
namespace cuda {

template std::string backward_over_keys<false>(const BackwardParams&, const BackwardArguments&, void*);

}  // namespace cuda
}  // namespace gma

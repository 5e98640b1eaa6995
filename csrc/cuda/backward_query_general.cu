#include "backward_query_kernel.h"

namespace gma {
namespace cuda {

template std::string backward_over_queries<true>(const BackwardParams&, const BackwardArguments&, void*);

}  // namespace cuda
}  // namespace gma

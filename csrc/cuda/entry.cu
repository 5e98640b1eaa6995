#include "dispatch.h"
#include "forward.h"

namespace gma {
namespace cuda {

bool serves(ScalarType scalar_type, int64_t head_size, int64_t value_size) {
  const int64_t size = larger(head_size, value_size);
  return scalar_type != ScalarType::float64 && head_size >= 1 && value_size >= 1 && size <= GMA_LARGEST_HEAD_TILE;
}

size_t forward_workspace(const ForwardParams& p) { return split_workspace(p); }

std::string forward(const ForwardParams& p, void* workspace, void* stream) {
  const Split split = split_source(p, workspace);
  // of packed sentences with a row or less on average, most will have one
  const bool decodes = p.group == 1 && (p.query_offsets != nullptr ? p.rows <= p.batches : p.rows == 1);
  std::string error = refuse(p);
  if (!error.empty()) return error;
  if (is_general(p)) error = decodes ? launch_decode<true>(p, split, stream) : launch_forward<true>(p, split, stream);
  else error = decodes ? launch_decode<false>(p, split, stream) : launch_forward<false>(p, split, stream);
  return error.empty() ? join_parts(p, split, stream) : error;
}

}  // namespace cuda
}  // namespace gma

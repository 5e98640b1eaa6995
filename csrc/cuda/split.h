// Few query rows and a long source: the source is split among blocks of threads, and a second small kernel joins what
// they leave of each row.
#pragma once

#include "launch.h"

namespace gma {
namespace cuda {

// How the source is split, and where the parts go; null where there is one.
struct Split {
  int count, keys;       // of parts, of a part
  float *maximum, *sum;  // [B * H, T, count]: of a part's softmax, base 2
  float* context;        // [B * H, T, count, head tile]: values weighted with 2^(logit - maximum)
};

// Depends on the shape alone. More rows than one block of threads takes are not split.
Split split_source(const ForwardParams& params, void* workspace);
size_t split_workspace(const ForwardParams& params);

// Joins the parts to context and logsumexp; where there is one part, nothing is left to do.
std::string join_parts(const ForwardParams& params, const Split& split, void* stream);

}  // namespace cuda
}  // namespace gma

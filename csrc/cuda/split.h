// Few query rows and a long source: the source is split among blocks of threads, and a second small kernel joins what
// they leave of each row.
#pragma once

#include "place.h"

namespace gma {
namespace cuda {

// Rows that a block of threads takes where there are few of them. More are not split.
constexpr int few_rows = 32;
bool has_few_rows(const ForwardParams& params);

// Depends on the shape alone. Packed sentences are not split: how long each is, only the device knows.
Split split_source(const ForwardParams& params, void* workspace);
size_t split_workspace(const ForwardParams& params);

// Joins the parts to context and logsumexp; where there is one part, nothing is left to do.
std::string join_parts(const ForwardParams& params, const Split& split, void* stream);

}  // namespace cuda
}  // namespace gma

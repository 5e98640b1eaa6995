// The CUDA kernels as plain functions: device pointers in the params, everything asynchronous on one stream.
//
// Nothing here allocates, synchronises or looks at device memory from the host, so all of it may be captured
// into a CUDA graph. The caller makes the tensors' device current, and keeps what the params point to alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../gaussian_attention.h"

namespace gma {
namespace cuda {

// Whether there are kernels for these sizes. float64 has none.
bool serves(ScalarType scalar_type, int64_t head_size, int64_t value_size);

// Bytes of scratch memory a call needs, 16-byte aligned; 0 means that null will do. Host arithmetic only.
size_t forward_workspace(const ForwardParams& params);
size_t backward_workspace(const BackwardParams& params);

// Each returns "" or what is wrong; earlier kernels of the call may then be enqueued. stream: a cudaStream_t. Needs
// compute capability 8.0.
// forward: writes context and logsumexp (float32), both required.
// backward: reads context and logsumexp as forward wrote them.
std::string forward(const ForwardParams& params, void* workspace, void* stream);
std::string backward(const BackwardParams& params, void* workspace, void* stream);

// weights: [B, H, T, S] contiguous. Ignores value, context, logsumexp and dropout.
std::string attention_weights(const ForwardParams& params, void* weights, void* stream);

}  // namespace cuda
}  // namespace gma

// From tensors to params: the checks, views and allocations that the bindings of all devices share. Torch's stable ABI
// only.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cmath>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>

#include "gaussian_attention.h"

namespace gma {
namespace binding {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::stable::Tensor;
using Dtype = torch::headeronly::ScalarType;
using Sizes = std::initializer_list<int64_t>;

// The device of a call's tensors, and how outputs are allocated on it.
struct Device {
  int32_t type, index;
  Tensor (*empty)(const Device& device, Sizes sizes, Sizes strides, Dtype dtype);
};

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

inline std::string shape_text(IntHeaderOnlyArrayRef sizes) {
  std::ostringstream text;
  for (size_t i = 0; i < sizes.size(); ++i) text << (i > 0 ? ", " : "[") << sizes[i];
  text << (sizes.size() > 0 ? "]" : "[]");
  return text.str();
}

inline int32_t device_index(const Tensor& tensor) {
  int32_t index;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  return index;
}

inline void require_device(const char* name, const Tensor& tensor, const Device& device) {
  if (device.type == aoti_torch_device_type_cpu()) return require(tensor.is_cpu(), name, " is not on the CPU");
  require(tensor.is_cuda() && device_index(tensor) == device.index, name, " is not on cuda:", device.index,
          " like query");
}

inline void require_tensor(const char* name, const Tensor& tensor, const Device& device, Dtype dtype, Sizes sizes) {
  require_device(name, tensor, device);
  require(tensor.layout() == torch::headeronly::Layout::Strided, name, " is not a strided tensor");
  require(tensor.scalar_type() == dtype, name, " has dtype ", torch::headeronly::toString(tensor.scalar_type()),
          "; expected ", torch::headeronly::toString(dtype));
  require(tensor.numel() == 0 || tensor.data_ptr() != nullptr, name, " has no memory: its storage was freed");
  const IntHeaderOnlyArrayRef expected(sizes.begin(), sizes.size()), given = tensor.sizes();
  if (!(given == expected)) require(false, name, " has shape ", shape_text(given), "; expected ", shape_text(expected));
}

// [B, H, rows, columns]
template <class Pointer>
View<Pointer> matrix_view(const char* name, const Tensor& tensor, const Device& device, Dtype dtype, Sizes sizes) {
  require_tensor(name, tensor, device, dtype, sizes);
  const IntHeaderOnlyArrayRef strides = tensor.strides();
  require(strides[3] == 1 || tensor.size(3) == 1 || tensor.numel() == 0, name, " has stride ", strides[3],
          " in its last dimension; expected 1, call .contiguous()");
  return {static_cast<Pointer*>(tensor.data_ptr()), strides[0], strides[1], strides[2]};
}

// [B, 1 or H, T]; one head serves all through a stride of 0
template <class Pointer>
View<Pointer> row_view(const char* name, const Tensor& tensor, const Device& device, Dtype dtype,
                       const ForwardParams& p) {
  const int64_t heads = tensor.dim() == 3 && tensor.size(1) == 1 ? 1 : p.heads;
  require_tensor(name, tensor, device, dtype, {p.batches, heads, p.rows});
  const IntHeaderOnlyArrayRef strides = tensor.strides();
  return {static_cast<Pointer*>(tensor.data_ptr()), strides[0], heads == 1 ? 0 : strides[1], strides[2]};
}

inline Dtype row_dtype(Dtype dtype) { return dtype == Dtype::Double ? Dtype::Double : Dtype::Float; }

inline ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float: return ScalarType::float32;
    case Dtype::Double: return ScalarType::float64;
    case Dtype::Half: return ScalarType::float16;
    case Dtype::BFloat16: return ScalarType::bfloat16;
    default:
      throw std::invalid_argument(std::string("query has dtype ") + torch::headeronly::toString(dtype) +
                                  "; expected float32, float64, float16 or bfloat16");
  }
}

// Fills in everything the weights depend on.
inline void describe_rows(const Tensor& query, const Tensor& key, const Tensor& center, const Tensor& width,
                          const Tensor& visible, int64_t prior, double scale, const Device& device, ForwardParams& p) {
  require(query.dim() == 4, "query has ", query.dim(), " dimensions; expected [B, H, T, D]");
  require(key.dim() == 4, "key has ", key.dim(), " dimensions; expected [B, H, S, D]");
  require(prior >= 0 && prior <= 3, "prior is ", prior, "; expected 0 to 3");
  require(std::isfinite(scale), "scale is ", scale, "; expected a finite number");
  const Dtype dtype = query.scalar_type();
  p.scalar_type = scalar_type(dtype);
  p.prior = static_cast<PriorKind>(prior);
  p.scale = scale;
  p.batches = query.size(0);
  p.heads = query.size(1);
  p.rows = query.size(2);
  p.keys = key.size(2);
  p.head_size = query.size(3);
  require(p.heads >= 1, "query has no heads; expected at least one");
  require(p.head_size >= 1 && p.head_size <= max_head_size, "query has ", p.head_size, " columns; expected 1 to ",
          max_head_size);
  require(p.rows < (int64_t(1) << 30) && p.keys < (int64_t(1) << 30), "T and S must be below 2**30");
  const int64_t key_heads = key.size(1);
  require(key_heads >= 1 && p.heads % key_heads == 0, "key has ", key_heads, " heads; expected a divisor of ", p.heads);
  p.group = p.heads / key_heads;
  p.query = matrix_view<const void>("query", query, device, dtype, {p.batches, p.heads, p.rows, p.head_size});
  p.key = matrix_view<const void>("key", key, device, dtype, {p.batches, key_heads, p.keys, p.head_size});
  p.center = row_view<const void>("center", center, device, row_dtype(dtype), p);
  p.width = row_view<const void>("width", width, device, row_dtype(dtype), p);
  p.visible = row_view<const int32_t>("visible", visible, device, Dtype::Int, p);
}

// Fills in value and dropout, but for the seed: only the caller knows where that may be read.
inline void describe_values(const Tensor& value, Dtype dtype, const std::optional<Tensor>& seed, double dropout_p,
                            const Device& device, ForwardParams& p) {
  require(value.dim() == 4, "value has ", value.dim(), " dimensions; expected [B, H, S, Dv]");
  p.value_size = value.size(3);
  require(p.value_size >= 1 && p.value_size <= max_head_size, "value has ", p.value_size, " columns; expected 1 to ",
          max_head_size);
  const Sizes expected = {p.batches, p.heads / p.group, p.keys, p.value_size};
  p.value = matrix_view<const void>("value", value, device, dtype, expected);
  require(dropout_p >= 0 && dropout_p < 1, "dropout_p is ", dropout_p, "; expected 0 <= dropout_p < 1");
  if (dropout_p == 0) return;
  require(seed.has_value(), "seed is missing; expected a 0-d int64 tensor when dropout_p > 0");
  require_tensor("seed", *seed, device, Dtype::Long, {});
  p.drop_below = static_cast<uint32_t>(std::floor(dropout_p * 4294967296.0));
  p.keep_scale = 1 / (1 - dropout_p);
}

// Fills in the left bound.
inline void describe_first(const std::optional<Tensor>& first, const Device& device, ForwardParams& p) {
  if (first.has_value()) p.first = row_view<const int32_t>("first", *first, device, Dtype::Int, p);
}

// In C: the dispatcher would look the operator up by name, which a decoding step feels.
inline Tensor empty_strided(const Device& device, Sizes sizes, Sizes strides, Dtype dtype) {
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle handle;
  // torch's own message does not come through its stable ABI before 2.13
  if (aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(), code, device.type,
                               device.index, &handle) != 0)
    throw std::runtime_error("torch could not allocate a tensor of shape " + shape_text({sizes.begin(), sizes.size()}) +
                             "; out of memory?");
  return Tensor(handle);
}

// [B, heads, rows, columns], dense in memory as [B, rows, heads, columns]
inline Tensor empty_heads(const Device& device, const ForwardParams& p, int64_t heads, int64_t rows, int64_t columns,
                          Dtype dtype) {
  return device.empty(device, {p.batches, heads, rows, columns}, {rows * heads * columns, columns, heads * columns, 1},
                      dtype);
}

inline Tensor empty_rows(const Device& device, const ForwardParams& p, int64_t heads, Dtype dtype) {
  return device.empty(device, {p.batches, heads, p.rows}, {heads * p.rows, p.rows, 1}, dtype);
}

inline std::tuple<Tensor, Tensor> empty_forward(const Device& device, Dtype dtype, ForwardParams& p) {
  Tensor context = empty_heads(device, p, p.heads, p.rows, p.value_size, dtype);
  Tensor logsumexp = empty_rows(device, p, p.heads, row_dtype(dtype));
  p.context = matrix_view<void>("context", context, device, dtype, {p.batches, p.heads, p.rows, p.value_size});
  p.logsumexp = row_view<void>("logsumexp", logsumexp, device, row_dtype(dtype), p);
  return {context, logsumexp};
}

// Fills in the results of the forward and the gradient of its context. Autograd passes expanded and transposed
// gradients: those are replaced by a copy. The context is in the schema that all backends share, and only checked.
inline void describe_results(const Tensor& context, const Tensor& logsumexp, Tensor& grad_context, Dtype dtype,
                             const Device& device, BackwardParams& p) {
  const Sizes sizes = {p.batches, p.heads, p.rows, p.value_size};
  require_tensor("context", context, device, dtype, sizes);
  require_tensor("logsumexp", logsumexp, device, row_dtype(dtype), {p.batches, p.heads, p.rows});
  p.logsumexp = row_view<void>("logsumexp", logsumexp, device, row_dtype(dtype), p);
  require_tensor("grad_context", grad_context, device, dtype, sizes);
  if (grad_context.stride(3) != 1) grad_context = torch::stable::contiguous(grad_context);
  p.grad_context = matrix_view<const void>("grad_context", grad_context, device, dtype, sizes);
}

inline void describe_grad_logsumexp(const std::optional<Tensor>& grad, Dtype dtype, const Device& device,
                                    BackwardParams& p) {
  if (!grad.has_value()) return;
  require_tensor("grad_logsumexp", *grad, device, row_dtype(dtype), {p.batches, p.heads, p.rows});
  p.grad_logsumexp = row_view<const void>("grad_logsumexp", *grad, device, row_dtype(dtype), p);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

inline Gradients empty_backward(const Device& device, Dtype dtype, int64_t center_heads, int64_t width_heads,
                                BackwardParams& p) {
  const int64_t key_heads = p.heads / p.group;
  Tensor query = empty_heads(device, p, p.heads, p.rows, p.head_size, dtype);
  Tensor key = empty_heads(device, p, key_heads, p.keys, p.head_size, dtype);
  Tensor value = empty_heads(device, p, key_heads, p.keys, p.value_size, dtype);
  Tensor center = empty_rows(device, p, center_heads, row_dtype(dtype));
  Tensor width = empty_rows(device, p, width_heads, row_dtype(dtype));
  p.grad_query = matrix_view<void>("grad_query", query, device, dtype, {p.batches, p.heads, p.rows, p.head_size});
  p.grad_key = matrix_view<void>("grad_key", key, device, dtype, {p.batches, key_heads, p.keys, p.head_size});
  p.grad_value = matrix_view<void>("grad_value", value, device, dtype, {p.batches, key_heads, p.keys, p.value_size});
  p.grad_center = row_view<void>("grad_center", center, device, row_dtype(dtype), p);
  p.grad_width = row_view<void>("grad_width", width, device, row_dtype(dtype), p);
  return {query, key, value, center, width};
}

inline Tensor empty_weights(const Device& device, Dtype dtype, const ForwardParams& p) {
  return device.empty(device, {p.batches, p.heads, p.rows, p.keys},
                      {p.heads * p.rows * p.keys, p.rows * p.keys, p.keys, 1}, dtype);
}

}  // namespace binding
}  // namespace gma

// Registers the CPU kernels with torch, through its stable ABI. The only file that knows tensors.

#include <pthread.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <atomic>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "cpu/pool.h"
#include "gaussian_attention.h"

// Part of torch's stable ABI from 2.11 on. Weak: with 2.10 it is null.
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError torch_from_blob(
    void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t storage_offset, int32_t dtype,
    int32_t device_type, int32_t device_index, AtenTensorHandle* handle, int32_t layout, const uint8_t* metadata,
    int64_t metadata_size, void (*deleter)(void* data, void* context), void* deleter_context);

namespace {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::stable::Tensor;
using Dtype = torch::headeronly::ScalarType;
using Sizes = std::initializer_list<int64_t>;

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

std::string shape_text(IntHeaderOnlyArrayRef sizes) {
  std::ostringstream text;
  for (size_t i = 0; i < sizes.size(); ++i) text << (i > 0 ? ", " : "[") << sizes[i];
  text << (sizes.size() > 0 ? "]" : "[]");
  return text.str();
}

void require_tensor(const char* name, const Tensor& tensor, Dtype dtype, Sizes sizes) {
  require(tensor.is_cpu(), name, " is not on the CPU");
  require(tensor.layout() == torch::headeronly::Layout::Strided, name, " is not a strided tensor");
  require(tensor.scalar_type() == dtype, name, " has dtype ", torch::headeronly::toString(tensor.scalar_type()),
          "; expected ", torch::headeronly::toString(dtype));
  require(tensor.numel() == 0 || tensor.data_ptr() != nullptr, name, " has no memory: its storage was freed");
  const IntHeaderOnlyArrayRef expected(sizes.begin(), sizes.size()), given = tensor.sizes();
  if (!(given == expected)) require(false, name, " has shape ", shape_text(given), "; expected ", shape_text(expected));
}

// [B, H, rows, columns]
template <class Pointer>
gma::View<Pointer> matrix_view(const char* name, const Tensor& tensor, Dtype dtype, Sizes sizes) {
  require_tensor(name, tensor, dtype, sizes);
  const IntHeaderOnlyArrayRef strides = tensor.strides();
  require(strides[3] == 1 || tensor.size(3) == 1 || tensor.numel() == 0, name, " has stride ", strides[3],
          " in its last dimension; expected 1, call .contiguous()");
  return {static_cast<Pointer*>(tensor.data_ptr()), strides[0], strides[1], strides[2]};
}

// [B, 1 or H, T]; one head serves all through a stride of 0
template <class Pointer>
gma::View<Pointer> row_view(const char* name, const Tensor& tensor, Dtype dtype, const gma::ForwardParams& p) {
  const int64_t heads = tensor.dim() == 3 && tensor.size(1) == 1 ? 1 : p.heads;
  require_tensor(name, tensor, dtype, {p.batches, heads, p.rows});
  const IntHeaderOnlyArrayRef strides = tensor.strides();
  return {static_cast<Pointer*>(tensor.data_ptr()), strides[0], heads == 1 ? 0 : strides[1], strides[2]};
}

Dtype row_dtype(Dtype dtype) { return dtype == Dtype::Double ? Dtype::Double : Dtype::Float; }

gma::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float: return gma::ScalarType::float32;
    case Dtype::Double: return gma::ScalarType::float64;
    case Dtype::Half: return gma::ScalarType::float16;
    case Dtype::BFloat16: return gma::ScalarType::bfloat16;
    default:
      throw std::invalid_argument(std::string("query has dtype ") + torch::headeronly::toString(dtype) +
                                  "; expected float32, float64, float16 or bfloat16");
  }
}

// all that the weights depend on
void describe_rows(const Tensor& query, const Tensor& key, const Tensor& center, const Tensor& width,
                   const Tensor& visible, int64_t prior, double scale, gma::ForwardParams& p) {
  require(query.dim() == 4, "query has ", query.dim(), " dimensions; expected [B, H, T, D]");
  require(key.dim() == 4, "key has ", key.dim(), " dimensions; expected [B, H, S, D]");
  require(prior >= 0 && prior <= 3, "prior is ", prior, "; expected 0 to 3");
  require(std::isfinite(scale), "scale is ", scale, "; expected a finite number");
  const Dtype dtype = query.scalar_type();
  p.scalar_type = scalar_type(dtype);
  p.prior = static_cast<gma::PriorKind>(prior);
  p.scale = scale;
  p.batches = query.size(0);
  p.heads = query.size(1);
  p.rows = query.size(2);
  p.keys = key.size(2);
  p.head_size = query.size(3);
  require(p.heads >= 1, "query has no heads; expected at least one");
  require(p.head_size >= 1 && p.head_size <= gma::max_head_size, "query has ", p.head_size,
          " columns; expected 1 to ", gma::max_head_size);
  require(p.rows < (int64_t(1) << 30) && p.keys < (int64_t(1) << 30), "T and S must be below 2**30");
  p.query = matrix_view<const void>("query", query, dtype, {p.batches, p.heads, p.rows, p.head_size});
  p.key = matrix_view<const void>("key", key, dtype, {p.batches, p.heads, p.keys, p.head_size});
  p.center = row_view<const void>("center", center, row_dtype(dtype), p);
  p.width = row_view<const void>("width", width, row_dtype(dtype), p);
  p.visible = row_view<const int32_t>("visible", visible, Dtype::Int, p);
}

void describe_values(const Tensor& value, Dtype dtype, const std::optional<Tensor>& seed, double dropout_p,
                     gma::ForwardParams& p) {
  require(value.dim() == 4, "value has ", value.dim(), " dimensions; expected [B, H, S, Dv]");
  p.value_size = value.size(3);
  require(p.value_size >= 1 && p.value_size <= gma::max_head_size, "value has ", p.value_size,
          " columns; expected 1 to ", gma::max_head_size);
  p.value = matrix_view<const void>("value", value, dtype, {p.batches, p.heads, p.keys, p.value_size});
  require(dropout_p >= 0 && dropout_p < 1, "dropout_p is ", dropout_p, "; expected 0 <= dropout_p < 1");
  if (dropout_p == 0) return;
  require(seed.has_value(), "seed is missing; expected a 0-d int64 tensor when dropout_p > 0");
  require_tensor("seed", *seed, Dtype::Long, {});
  p.drop_below = static_cast<uint32_t>(std::floor(dropout_p * 4294967296.0));
  p.keep_scale = 1 / (1 - dropout_p);
  p.seed = static_cast<uint64_t>(*seed->const_data_ptr<int64_t>());
}

// 0 if that is more than can be counted
size_t dense_bytes(Sizes sizes, int32_t dtype_code) {
  size_t bytes = aoti_torch_dtype_element_size(dtype_code);
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) return 0;
  return bytes;
}

// Dense, big ones in a block of the pool. The C calls, because a decoding step feels the dispatcher's search for an
// operator by name.
Tensor empty_strided(Sizes sizes, Sizes strides, Dtype dtype) {
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  const auto dimensions = static_cast<int64_t>(sizes.size());
  const int32_t cpu = aoti_torch_device_type_cpu();
  AtenTensorHandle handle;
  const size_t bytes = torch_from_blob != nullptr ? dense_bytes(sizes, code) : 0;
  void* const block = bytes >= gma::smallest_pooled_bytes ? gma::take_block(bytes) : nullptr;
  if (block != nullptr) {
    const auto give_back = [](void* data, void* bytes) { gma::give_block(data, reinterpret_cast<size_t>(bytes)); };
    STABLE_TORCH_ERROR_CODE_CHECK(torch_from_blob(block, dimensions, sizes.begin(), strides.begin(), 0, code, cpu, -1,
                                                  &handle, aoti_torch_layout_strided(), nullptr, 0, give_back,
                                                  reinterpret_cast<void*>(bytes)));
  } else {
    STABLE_TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(dimensions, sizes.begin(), strides.begin(), code, cpu, 0, &handle));
  }
  return Tensor(handle);
}

// [B, H, rows, columns], dense in memory as [B, rows, H, columns]
Tensor empty_heads(const gma::ForwardParams& p, int64_t rows, int64_t columns, Dtype dtype) {
  return empty_strided({p.batches, p.heads, rows, columns}, {rows * p.heads * columns, columns, p.heads * columns, 1},
                       dtype);
}

Tensor empty_rows(const gma::ForwardParams& p, int64_t heads, Dtype dtype) {
  return empty_strided({p.batches, heads, p.rows}, {heads * p.rows, p.rows, 1}, dtype);
}

// the caller's worker threads do not survive fork(): a child computes alone
std::atomic<bool> is_forked{false};
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

gma::Parallel torch_threads() {
  const auto run = [](int workers, void (*work)(void*), void* state) {
    torch::stable::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) work(state);
    });
  };
  return {is_forked ? 1 : static_cast<int>(torch::stable::get_num_threads()), run};
}

std::tuple<Tensor, Tensor> native_forward(Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                                          Tensor visible, std::optional<Tensor> seed, int64_t prior, double scale,
                                          double dropout_p) {
  gma::ForwardParams p{};
  describe_rows(query, key, center, width, visible, prior, scale, p);
  const Dtype dtype = query.scalar_type();
  describe_values(value, dtype, seed, dropout_p, p);
  Tensor context = empty_heads(p, p.rows, p.value_size, dtype);
  Tensor logsumexp = empty_rows(p, p.heads, row_dtype(dtype));
  p.context = matrix_view<void>("context", context, dtype, {p.batches, p.heads, p.rows, p.value_size});
  p.logsumexp = row_view<void>("logsumexp", logsumexp, row_dtype(dtype), p);
  gma::forward(p, torch_threads());
  return {context, logsumexp};
}

// context and logsumexp are part of the schema all backends share; this one computes rows anew and only checks them
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> native_backward(
    Tensor grad_context, Tensor query, Tensor key, Tensor value, Tensor center, Tensor width, Tensor visible,
    std::optional<Tensor> seed, Tensor context, Tensor logsumexp, int64_t prior, double scale, double dropout_p) {
  gma::BackwardParams p{};
  describe_rows(query, key, center, width, visible, prior, scale, p);
  const Dtype dtype = query.scalar_type();
  describe_values(value, dtype, seed, dropout_p, p);
  const Sizes context_sizes = {p.batches, p.heads, p.rows, p.value_size};
  require_tensor("context", context, dtype, context_sizes);
  require_tensor("logsumexp", logsumexp, row_dtype(dtype), {p.batches, p.heads, p.rows});
  // autograd hands over expanded and transposed gradients
  require_tensor("grad_context", grad_context, dtype, context_sizes);
  if (grad_context.stride(3) != 1) grad_context = torch::stable::contiguous(grad_context);
  p.grad_context = matrix_view<const void>("grad_context", grad_context, dtype, context_sizes);

  Tensor grad_query = empty_heads(p, p.rows, p.head_size, dtype);
  Tensor grad_key = empty_heads(p, p.keys, p.head_size, dtype);
  Tensor grad_value = empty_heads(p, p.keys, p.value_size, dtype);
  Tensor grad_center = empty_rows(p, center.size(1), row_dtype(dtype));
  Tensor grad_width = empty_rows(p, width.size(1), row_dtype(dtype));
  p.grad_query = matrix_view<void>("grad_query", grad_query, dtype, {p.batches, p.heads, p.rows, p.head_size});
  p.grad_key = matrix_view<void>("grad_key", grad_key, dtype, {p.batches, p.heads, p.keys, p.head_size});
  p.grad_value = matrix_view<void>("grad_value", grad_value, dtype, {p.batches, p.heads, p.keys, p.value_size});
  p.grad_center = row_view<void>("grad_center", grad_center, row_dtype(dtype), p);
  p.grad_width = row_view<void>("grad_width", grad_width, row_dtype(dtype), p);
  gma::backward(p, torch_threads());
  return {grad_query, grad_key, grad_value, grad_center, grad_width};
}

Tensor native_weights(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible, int64_t prior,
                      double scale) {
  gma::ForwardParams p{};
  describe_rows(query, key, center, width, visible, prior, scale, p);
  Tensor weights = empty_strided({p.batches, p.heads, p.rows, p.keys},
                                 {p.heads * p.rows * p.keys, p.rows * p.keys, p.keys, 1}, query.scalar_type());
  gma::attention_weights(p, weights.data_ptr(), torch_threads());
  return weights;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(gma_kernels, CPU, library) {
  library.impl("native_forward", TORCH_BOX(&native_forward));
  library.impl("native_backward", TORCH_BOX(&native_backward));
  library.impl("native_weights", TORCH_BOX(&native_weights));
}

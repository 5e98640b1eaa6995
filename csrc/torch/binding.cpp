// Registers the CPU kernels with torch.

#include "binding.h"

#include <pthread.h>

#include <atomic>

#include "cpu/pool.h"
#include "threads.h"

// Part of torch's stable ABI from 2.11 on. Weak: with 2.10 it is null.
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError torch_from_blob(
    void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t storage_offset, int32_t dtype,
    int32_t device_type, int32_t device_index, AtenTensorHandle* handle, int32_t layout, const uint8_t* metadata,
    int64_t metadata_size, void (*deleter)(void* data, void* context), void* deleter_context);

namespace {

using namespace gma::binding;

// 0 on overflow
size_t dense_bytes(Sizes sizes, int32_t dtype_code) {
  size_t bytes = aoti_torch_dtype_element_size(dtype_code);
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) return 0;
  return bytes;
}

// An uninitialised dense tensor; the memory of a big one comes from the pool.
Tensor empty_pooled(const Device& device, Sizes sizes, Sizes strides, Dtype dtype) {
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  const size_t bytes = torch_from_blob != nullptr ? dense_bytes(sizes, code) : 0;
  void* const block = bytes >= gma::smallest_pooled_bytes ? gma::take_block(bytes) : nullptr;
  if (block == nullptr) return empty_strided(device, sizes, strides, dtype);
  const auto give_back = [](void* data, void* bytes) { gma::give_block(data, reinterpret_cast<size_t>(bytes)); };
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_from_blob(block, static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(), 0, code, device.type,
                      -1, &handle, aoti_torch_layout_strided(), nullptr, 0, give_back, reinterpret_cast<void*>(bytes)));
  return Tensor(handle);
}

Device cpu() { return {aoti_torch_device_type_cpu(), 0, empty_pooled}; }

// worker threads do not survive fork(): a child computes on its only thread
std::atomic<bool> is_forked{false};
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

}  // namespace

gma::Parallel gma::torch_threads() {
  const auto run = [](int workers, void (*work)(void*), void* state) {
    torch::stable::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) work(state);
    });
  };
  return {is_forked ? 1 : static_cast<int>(torch::stable::get_num_threads()), run};
}

namespace {

void read_seed(const std::optional<Tensor>& seed, gma::ForwardParams& p) {
  if (p.drop_below > 0) p.seed = static_cast<uint64_t>(*seed->const_data_ptr<int64_t>());
}

std::tuple<Tensor, Tensor> native_forward(Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                                          Tensor visible, std::optional<Tensor> seed, int64_t prior, double scale,
                                          double dropout_p) {
  gma::ForwardParams p{};
  const Device device = cpu();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_values(value, dtype, seed, dropout_p, device, p);
  read_seed(seed, p);
  auto outputs = empty_forward(device, dtype, p);
  gma::forward(p, gma::torch_threads());
  return outputs;
}

// the kernel recomputes rows: the context is only checked
Gradients native_backward(Tensor grad_context, Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                          Tensor visible, std::optional<Tensor> seed, Tensor context, Tensor logsumexp, int64_t prior,
                          double scale, double dropout_p) {
  gma::BackwardParams p{};
  const Device device = cpu();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_values(value, dtype, seed, dropout_p, device, p);
  read_seed(seed, p);
  describe_results(context, logsumexp, grad_context, dtype, device, p);
  Gradients gradients = empty_backward(device, dtype, center.size(1), width.size(1), p);
  gma::backward(p, gma::torch_threads());
  return gradients;
}

Tensor native_weights(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible, int64_t prior,
                      double scale) {
  gma::ForwardParams p{};
  const Device device = cpu();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  Tensor weights = empty_weights(device, query.scalar_type(), p);
  gma::attention_weights(p, weights.data_ptr(), gma::torch_threads());
  return weights;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(gma_kernels, CPU, library) {
  library.impl("native_forward", TORCH_BOX(&native_forward));
  library.impl("native_backward", TORCH_BOX(&native_backward));
  library.impl("native_weights", TORCH_BOX(&native_weights));
}

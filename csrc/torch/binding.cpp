// Registers the CPU kernels with torch.

#include "binding.h"

#include <pthread.h>

#include <atomic>
#include <utility>

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

// The most that one sentence has, of offsets of packed ones.
int64_t longest_sentence(const char* name, const Tensor& offsets, const Device& device, int64_t sentences,
                         int64_t total) {
  require_tensor(name, offsets, device, Dtype::Int, {sentences + 1});
  require(offsets.stride(0) == 1 || sentences == 0, name, " has stride ", offsets.stride(0),
          "; expected 1, call .contiguous()");
  const int32_t* ends = offsets.const_data_ptr<int32_t>();
  int64_t longest = 0;
  for (int64_t b = 0; b < sentences; ++b) {
    const int64_t length = int64_t(ends[b + 1]) - ends[b];
    require(length >= 0, name, " falls from ", ends[b], " to ", ends[b + 1], "; expected it never to fall");
    longest = length > longest ? length : longest;
  }
  require(ends[0] == 0 && ends[sentences] == total, name, " leads from ", ends[0], " to ", ends[sentences],
          "; expected from 0 to ", total);
  return longest;
}

// After everything else is described and allocated as of one long sentence.
void describe_sentences(const std::optional<Tensor>& cu_query, const std::optional<Tensor>& cu_key,
                        const Device& device, gma::ForwardParams& p) {
  require(cu_query.has_value() == cu_key.has_value(), "cu_query and cu_key: expected both or none");
  if (!cu_query.has_value()) return;
  require(p.batches == 1, "query has ", p.batches, " batches; expected 1 with cu_query");
  require(cu_query->dim() == 1 && cu_query->size(0) >= 1, "cu_query has shape ", shape_text(cu_query->sizes()),
          "; expected [sentences + 1]");
  const int64_t sentences = cu_query->size(0) - 1;
  p.packed_rows = p.rows;
  p.rows = longest_sentence("cu_query", *cu_query, device, sentences, p.packed_rows);
  p.keys = longest_sentence("cu_key", *cu_key, device, sentences, p.keys);
  p.batches = sentences;
  p.query_offsets = cu_query->const_data_ptr<int32_t>();
  p.key_offsets = cu_key->const_data_ptr<int32_t>();
}

std::tuple<Tensor, Tensor> native_general_forward(Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                                                  Tensor visible, std::optional<Tensor> first,
                                                  std::optional<Tensor> cu_query, std::optional<Tensor> cu_key,
                                                  std::optional<Tensor> seed, int64_t prior, double scale,
                                                  double dropout_p) {
  gma::ForwardParams p{};
  const Device device = cpu();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_values(value, dtype, seed, dropout_p, device, p);
  describe_first(first, device, p);
  read_seed(seed, p);
  auto outputs = empty_forward(device, dtype, p);
  describe_sentences(cu_query, cu_key, device, p);
  gma::forward(p, gma::torch_threads());
  return outputs;
}

// the kernel recomputes rows: the context is only checked
Gradients native_general_backward(Tensor grad_context, std::optional<Tensor> grad_logsumexp, Tensor query, Tensor key,
                                  Tensor value, Tensor center, Tensor width, Tensor visible,
                                  std::optional<Tensor> first, std::optional<Tensor> cu_query,
                                  std::optional<Tensor> cu_key, std::optional<Tensor> seed, Tensor context,
                                  Tensor logsumexp, int64_t prior, double scale, double dropout_p) {
  gma::BackwardParams p{};
  const Device device = cpu();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_values(value, dtype, seed, dropout_p, device, p);
  describe_first(first, device, p);
  read_seed(seed, p);
  describe_results(context, logsumexp, grad_context, dtype, device, p);
  describe_grad_logsumexp(grad_logsumexp, dtype, device, p);
  Gradients gradients = empty_backward(device, dtype, center.size(1), width.size(1), p);
  describe_sentences(cu_query, cu_key, device, p);
  gma::backward(p, gma::torch_threads());
  return gradients;
}

Tensor native_general_weights(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible,
                              std::optional<Tensor> first, int64_t prior, double scale) {
  gma::ForwardParams p{};
  const Device device = cpu();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_first(first, device, p);
  Tensor weights = empty_weights(device, query.scalar_type(), p);
  gma::attention_weights(p, weights.data_ptr(), gma::torch_threads());
  return weights;
}

std::tuple<Tensor, Tensor> native_forward(Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                                          Tensor visible, std::optional<Tensor> seed, int64_t prior, double scale,
                                          double dropout_p) {
  return native_general_forward(std::move(query), std::move(key), std::move(value), std::move(center), std::move(width),
                                std::move(visible), std::nullopt, std::nullopt, std::nullopt, std::move(seed), prior,
                                scale, dropout_p);
}

Gradients native_backward(Tensor grad_context, Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                          Tensor visible, std::optional<Tensor> seed, Tensor context, Tensor logsumexp, int64_t prior,
                          double scale, double dropout_p) {
  return native_general_backward(std::move(grad_context), std::nullopt, std::move(query), std::move(key),
                                 std::move(value), std::move(center), std::move(width), std::move(visible),
                                 std::nullopt, std::nullopt, std::nullopt, std::move(seed), std::move(context),
                                 std::move(logsumexp), prior, scale, dropout_p);
}

Tensor native_weights(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible, int64_t prior,
                      double scale) {
  return native_general_weights(std::move(query), std::move(key), std::move(center), std::move(width),
                                std::move(visible), std::nullopt, prior, scale);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(gma_kernels, CPU, library) {
  library.impl("native_forward", TORCH_BOX(&native_forward));
  library.impl("native_backward", TORCH_BOX(&native_backward));
  library.impl("native_weights", TORCH_BOX(&native_weights));
  library.impl("native_general_forward", TORCH_BOX(&native_general_forward));
  library.impl("native_general_backward", TORCH_BOX(&native_general_backward));
  library.impl("native_general_weights", TORCH_BOX(&native_general_weights));
}

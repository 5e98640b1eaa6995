// Registers the CUDA kernels with torch. Nothing of torch's CUDA libraries is included or linked, so that the extension
// is built with, and loads into, a torch that has none.

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>

#include <utility>

#include "binding.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace {

using namespace gma::binding;

void require_success(const std::string& error) {
  if (error.empty()) return;
  throw std::runtime_error("gma_kernels, built for compute capability " + gma::cuda::architectures() + ": " + error);
}

// Makes the query's device current for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& query) : index_(cuda_index(query)), guard_(index_) {
    // torch has a CUDA runtime of its own, and ours must use the same device
    require_success(gma::cuda::use_device(index_));
  }

  Device device() const { return {aoti_torch_device_type_cuda(), index_, empty_strided}; }

  // Looked up in the library that a CUDA build of torch has loaded. A stream's native handle is part of the stable ABI
  // from 2.13 on only, and a weak symbol would stay null: libtorch_cuda is none of our dependencies.
  void* stream() const {
    static const auto current_stream = [] {
      void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
      void* const symbol = dlsym(library != nullptr ? library : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream");
      return reinterpret_cast<AOTITorchError (*)(int32_t device_index, void** stream)>(symbol);
    }();
    if (current_stream == nullptr) throw std::runtime_error("this torch has no CUDA streams; install its CUDA build");
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(current_stream(index_, &stream));
    return stream;
  }

 private:
  static int32_t cuda_index(const Tensor& query) {
    require(query.is_cuda(), "query is not on a CUDA device");
    return device_index(query);
  }

  int32_t index_;
  torch::stable::accelerator::DeviceGuard guard_;
};

// torch's allocator reuses this memory only after the stream's work with it
Tensor empty_bytes(const Device& device, size_t bytes) {
  return empty_strided(device, {static_cast<int64_t>(bytes)}, {1}, Dtype::Byte);
}

void require_served(Dtype dtype, int64_t value_size, const gma::ForwardParams& p) {
  require(gma::cuda::serves(p.scalar_type, p.head_size, value_size), "the CUDA kernels do not serve ",
          torch::headeronly::toString(dtype), " with D = ", p.head_size, " and Dv = ", value_size,
          "; pass backend='reference'");
}

void point_to_seed(const std::optional<Tensor>& seed, gma::ForwardParams& p) {
  if (p.drop_below > 0) p.seed_pointer = reinterpret_cast<const uint64_t*>(seed->const_data_ptr<int64_t>());
}

// After everything else is described and allocated as of one long sentence. What the offsets are, only the kernels see.
void describe_sentences(const std::optional<Tensor>& cu_query, const std::optional<Tensor>& cu_key,
                        const Device& device, gma::ForwardParams& p) {
  require(cu_query.has_value() == cu_key.has_value(), "cu_query and cu_key: expected both or none");
  if (!cu_query.has_value()) return;
  require(p.batches == 1, "query has ", p.batches, " batches; expected 1 with cu_query");
  require(cu_query->dim() == 1 && cu_query->size(0) >= 1, "cu_query has shape ", shape_text(cu_query->sizes()),
          "; expected [sentences + 1]");
  p.batches = cu_query->size(0) - 1;
  p.packed_rows = p.rows;
  const auto offsets = [&](const char* name, const Tensor& tensor) {
    require_tensor(name, tensor, device, Dtype::Int, {p.batches + 1});
    require(tensor.stride(0) == 1 || p.batches == 0, name, " has stride ", tensor.stride(0),
            "; expected 1, call .contiguous()");
    return tensor.const_data_ptr<int32_t>();
  };
  p.query_offsets = offsets("cu_query", *cu_query);
  p.key_offsets = offsets("cu_key", *cu_key);
}

std::tuple<Tensor, Tensor> cuda_general_forward(Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                                                Tensor visible, std::optional<Tensor> first,
                                                std::optional<Tensor> cu_query, std::optional<Tensor> cu_key,
                                                std::optional<Tensor> seed, int64_t prior, double scale,
                                                double dropout_p) {
  gma::ForwardParams p{};
  const OnDevice place(query);
  const Device device = place.device();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_values(value, dtype, seed, dropout_p, device, p);
  describe_first(first, device, p);
  require_served(dtype, p.value_size, p);
  point_to_seed(seed, p);
  auto outputs = empty_forward(device, dtype, p);
  describe_sentences(cu_query, cu_key, device, p);
  const Tensor workspace = empty_bytes(device, gma::cuda::forward_workspace(p));
  require_success(gma::cuda::forward(p, workspace.data_ptr(), place.stream()));
  return outputs;
}

Gradients cuda_general_backward(Tensor grad_context, std::optional<Tensor> grad_logsumexp, Tensor query, Tensor key,
                                Tensor value, Tensor center, Tensor width, Tensor visible, std::optional<Tensor> first,
                                std::optional<Tensor> cu_query, std::optional<Tensor> cu_key,
                                std::optional<Tensor> seed, Tensor context, Tensor logsumexp, int64_t prior,
                                double scale, double dropout_p) {
  gma::BackwardParams p{};
  const OnDevice place(query);
  const Device device = place.device();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_values(value, dtype, seed, dropout_p, device, p);
  describe_first(first, device, p);
  require_served(dtype, p.value_size, p);
  point_to_seed(seed, p);
  describe_results(context, logsumexp, grad_context, dtype, device, p);
  describe_grad_logsumexp(grad_logsumexp, dtype, device, p);
  // the only backend that reads it in its backward
  if (context.stride(3) != 1) context = torch::stable::contiguous(context);
  p.context = matrix_view<void>("context", context, device, dtype, {p.batches, p.heads, p.rows, p.value_size});
  Gradients gradients = empty_backward(device, dtype, center.size(1), width.size(1), p);
  describe_sentences(cu_query, cu_key, device, p);
  const Tensor workspace = empty_bytes(device, gma::cuda::backward_workspace(p));
  require_success(gma::cuda::backward(p, workspace.data_ptr(), place.stream()));
  return gradients;
}

Tensor cuda_general_weights(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible,
                            std::optional<Tensor> first, int64_t prior, double scale) {
  gma::ForwardParams p{};
  const OnDevice place(query);
  const Device device = place.device();
  const Dtype dtype = query.scalar_type();
  describe_rows(query, key, center, width, visible, prior, scale, device, p);
  describe_first(first, device, p);
  require_served(dtype, p.head_size, p);
  Tensor weights = empty_weights(device, dtype, p);
  require_success(gma::cuda::attention_weights(p, weights.data_ptr(), place.stream()));
  return weights;
}

std::tuple<Tensor, Tensor> cuda_forward(Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                                        Tensor visible, std::optional<Tensor> seed, int64_t prior, double scale,
                                        double dropout_p) {
  return cuda_general_forward(std::move(query), std::move(key), std::move(value), std::move(center), std::move(width),
                              std::move(visible), std::nullopt, std::nullopt, std::nullopt, std::move(seed), prior,
                              scale, dropout_p);
}

Gradients cuda_backward(Tensor grad_context, Tensor query, Tensor key, Tensor value, Tensor center, Tensor width,
                        Tensor visible, std::optional<Tensor> seed, Tensor context, Tensor logsumexp, int64_t prior,
                        double scale, double dropout_p) {
  return cuda_general_backward(std::move(grad_context), std::nullopt, std::move(query), std::move(key),
                               std::move(value), std::move(center), std::move(width), std::move(visible), std::nullopt,
                               std::nullopt, std::nullopt, std::move(seed), std::move(context), std::move(logsumexp),
                               prior, scale, dropout_p);
}

Tensor cuda_weights(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible, int64_t prior,
                    double scale) {
  return cuda_general_weights(std::move(query), std::move(key), std::move(center), std::move(width), std::move(visible),
                              std::nullopt, prior, scale);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(gma_kernels, CUDA, library) {
  library.impl("cuda_forward", TORCH_BOX(&cuda_forward));
  library.impl("cuda_backward", TORCH_BOX(&cuda_backward));
  library.impl("cuda_weights", TORCH_BOX(&cuda_weights));
  library.impl("cuda_general_forward", TORCH_BOX(&cuda_general_forward));
  library.impl("cuda_general_backward", TORCH_BOX(&cuda_general_backward));
  library.impl("cuda_general_weights", TORCH_BOX(&cuda_general_weights));
}

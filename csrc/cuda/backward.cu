// Backward: one kernel over query rows, one over keys, and the sum over heads where they share a center or a width.
// No atomics: every sum is made in one order, so two runs give the same bits.

#include "backward.h"
#include "dispatch.h"

namespace gma {
namespace cuda {
namespace {

constexpr int sum_threads = 128;

struct SumArguments {
  int64_t batches, heads, rows;
  const float* from;  // [B, H, T]
  View<float> to;     // [B, T]
};

__global__ void __launch_bounds__(sum_threads) sum_heads_kernel(SumArguments arguments) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  if (index >= arguments.batches * arguments.rows) return;
  const int64_t batch = index / arguments.rows, row = index % arguments.rows;
  float sum = 0;
  for (int64_t head = 0; head < arguments.heads; ++head)
    sum += arguments.from[(batch * arguments.heads + head) * arguments.rows + row];
  arguments.to.data[batch * arguments.to.batch_stride + row * arguments.to.row_stride] = sum;
}

// packed sentences are one
int64_t batches_in_memory(const BackwardParams& p) { return p.query_offsets != nullptr ? 1 : p.batches; }

bool is_shared(const BackwardParams& p, const View<void>& grad) { return p.heads > 1 && grad.head_stride == 0; }

// What the kernels leave for one another; null where nothing is needed.
struct Workspace {
  void* groups;
  float *center, *width;  // [B, H, T]
  size_t bytes = 0;

  Workspace(const BackwardParams& p, void* memory) {
    const int64_t rows = batches_in_memory(p) * p.heads * p.rows, count = count_blocks(p, Of::rows, group_rows, 1);
    if (is_general(p)) groups = take<RowGroup<true>>(memory, count);
    else groups = take<RowGroup<false>>(memory, count);
    center = is_shared(p, p.grad_center) ? take<float>(memory, rows) : nullptr;
    width = is_shared(p, p.grad_width) ? take<float>(memory, rows) : nullptr;
  }

  template <class T>
  T* take(void* memory, int64_t count) {
    T* taken = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(memory) + bytes);
    bytes += static_cast<size_t>(divide_up(count * static_cast<int64_t>(sizeof(T)), 16) * 16);
    return taken;
  }
};

View<float> one_for_each_head(const BackwardParams& p, float* workspace, const View<void>& grad) {
  if (workspace == nullptr) return cast_view<float>(grad);
  return {workspace, p.heads * p.rows, p.rows, 1};
}

std::string sum_heads(const BackwardParams& p, const float* from, const View<void>& to, void* stream) {
  if (from == nullptr) return "";
  return launch("sum of heads", sum_heads_kernel, divide_up(batches_in_memory(p) * p.rows, sum_threads), sum_threads, 0,
                stream, SumArguments{batches_in_memory(p), p.heads, p.rows, from, cast_view<float>(to)});
}

}  // namespace

size_t backward_workspace(const BackwardParams& p) { return Workspace(p, nullptr).bytes; }

std::string backward(const BackwardParams& p, void* memory, void* stream) {
  const Workspace workspace(p, memory);
  BackwardArguments arguments{};
  arguments.call = make_call(p);
  arguments.query = row_matrix(p, p.query, p.head_size);
  arguments.key = key_matrix(p, p.key, p.head_size);
  arguments.value = key_matrix(p, p.value, p.value_size);
  arguments.context = row_matrix(p, p.context, p.value_size);
  arguments.grad_context = row_matrix(p, p.grad_context, p.value_size);
  arguments.grad_logsumexp = cast_view<const float>(p.grad_logsumexp);
  arguments.grad_query = row_matrix(p, p.grad_query, p.head_size);
  arguments.grad_key = key_matrix(p, p.grad_key, p.head_size);
  arguments.grad_value = key_matrix(p, p.grad_value, p.value_size);
  arguments.grad_center = one_for_each_head(p, workspace.center, p.grad_center);
  arguments.grad_width = one_for_each_head(p, workspace.width, p.grad_width);
  arguments.groups = workspace.groups;
  std::string error = refuse(p);
  const bool general = is_general(p);
  if (error.empty())
    error = general ? backward_over_queries<true>(p, arguments, stream)
                    : backward_over_queries<false>(p, arguments, stream);
  if (error.empty())
    error = general ? backward_over_keys<true>(p, arguments, stream) : backward_over_keys<false>(p, arguments, stream);
  if (error.empty()) error = sum_heads(p, workspace.center, p.grad_center, stream);
  if (error.empty()) error = sum_heads(p, workspace.width, p.grad_width, stream);
  return error;
}

}  // namespace cuda
}  // namespace gma

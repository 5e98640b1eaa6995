// Gaussian multi-head attention on plain pointers, sizes and strides.
//
//   logit_ij  = scale * q_i.k_j + log_prior(j; center_i, width_i)    j = first_i + 1 .. visible_i
//   context_i = sum_j dropout(softmax_j(logit_ij)) v_j
//
// B sentences, H heads, T query rows, S keys; queries and keys have D columns, values Dv. Keys and values have H_kv
// heads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gma {

enum class PriorKind : int { gaussian, laplace, linear, none };
enum class ScalarType : int { float32, float64, float16, bfloat16 };

constexpr int64_t max_head_size = 256;

// [B, H, rows, columns] with contiguous columns, or [B, H, rows]. Strides count elements and may be 0.
template <class Pointer>
struct View {
  Pointer* data;
  int64_t batch_stride, head_stride, row_stride;
};

struct ForwardParams {
  ScalarType scalar_type;  // of query, key, value, context and their gradients
  PriorKind prior;
  int64_t batches, heads, rows, keys, head_size, value_size;  // B, H, T, S, D, Dv
  int64_t group = 1;  // H / H_kv: so many heads that follow one another share a head of keys and values
  double scale;

  // a weight is dropped if its random word is below `drop_below`; 0 means no dropout
  uint32_t drop_below;
  double keep_scale;
  uint64_t seed;
  const uint64_t* seed_pointer;  // CUDA only: if not null, the seed is read here, on the device

  View<const void> query, key, value;  // [B, H, T, D], [B, H_kv, S, D], [B, H_kv, S, Dv]
  View<const void> center, width;      // [B, H, T], float64 for float64, else float32
  View<const int32_t> visible;         // [B, H, T]
  View<const int32_t> first{};         // [B, H, T], or null for 0
  // [B, H_kv], squared: the largest norm of a key that a row sees; null where nobody has looked
  const double* largest_keys = nullptr;
  View<void> context;    // [B, H, T, Dv]; not read by the backward, which recomputes rows
  View<void> logsumexp;  // [B, H, T], of center's type; read by the backward

  // Packed sentences, if not null: [B + 1] each, and sentence b has the rows from query_offsets[b] and the keys from
  // key_offsets[b] up to the next one's, of what otherwise looks like one sentence. T and S are then those of the
  // longest sentences, and all rows together are `packed_rows`.
  const int32_t *query_offsets = nullptr, *key_offsets = nullptr;
  int64_t packed_rows = 0;
  // of one of them, as kernels see it: its number, and its first row among all
  int64_t sentence = 0, row_offset = 0;
};

struct BackwardParams : ForwardParams {
  View<const void> grad_context;                // [B, H, T, Dv]
  View<const void> grad_logsumexp{};            // [B, H, T], of center's type, or null for 0
  View<void> grad_query, grad_key, grad_value;  // [B, H, T, D], [B, H_kv, S, D], [B, H_kv, S, Dv]
  View<void> grad_center, grad_width;           // [B, H, T]; head stride 0 sums over the heads
};

// The caller's thread pool: `run` calls work(state) on up to `workers` threads at once and returns
// when all calls have returned.
struct Parallel {
  int threads;
  void (*run)(int workers, void (*work)(void* state), void* state);
};

// All of these throw, from the calling thread: std::invalid_argument for values a row may not have, and
// std::bad_alloc. Results depend on the SIMD level but not on the number of threads.
void forward(const ForwardParams& params, const Parallel& parallel);
void backward(const BackwardParams& params, const Parallel& parallel);

// weights: [B, H, T, S] contiguous. Ignores value, context, logsumexp and dropout.
void attention_weights(const ForwardParams& params, void* weights, const Parallel& parallel);

// The SIMD level in use, those this build and CPU can run (best first), and a choice among them.
// GMA_SIMD in the environment makes the first choice. Unknown levels throw std::invalid_argument.
std::string simd_level();
std::vector<std::string> simd_levels();
void use_simd(const std::string& level);

}  // namespace gma

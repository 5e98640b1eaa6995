#include "dispatch.h"
#include "softmax.h"
#include "split.h"
#include "tile.h"

namespace gma {
namespace cuda {
namespace {

// the most parts, so that one thread at most looks at each
constexpr int join_threads = 128;
constexpr int64_t most_split_rows = 16, enough_blocks = 512, fewest_keys = 128;

struct JoinArguments {
  Call call;
  Matrix context;
  Split split;
};

// Of a block of threads: in every thread the sum or the maximum of what the threads give. scratch: one float a warp.
template <class Combine>
GMA_DEVICE float over_block(float x, float* scratch, const Combine& combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(whole_warp, x, distance));
  __syncthreads();
  if (lane_index() == 0) scratch[warp_index()] = x;
  __syncthreads();
  x = scratch[0];
#pragma unroll
  for (int warp = 1; warp < join_threads / 32; ++warp) x = combine(x, scratch[warp]);
  return x;
}

// One block of threads for a row. A thread weighs one part; then each adds up some parts of one column.
template <class scalar, int head_tile>
__global__ void __launch_bounds__(join_threads) join_kernel(JoinArguments arguments) {
  // threads side by side take a column each, and their neighbours other parts
  constexpr int columns = head_tile < join_threads ? head_tile : join_threads, teams = join_threads / columns;
  const Call& call = arguments.call;
  const Split& split = arguments.split;
  const Place place = find_place<true, Of::rows>(call, 1, 1);
  const int64_t row = place.stack * place.rows + place.tile;
  const int thread = static_cast<int>(threadIdx.x), column = thread % columns, team = thread / columns;
  float* const factors = shared_memory<float>();    // [join_threads]
  float* const scratch = factors + join_threads;    // [warps]
  float* const sums = scratch + join_threads / 32;  // [join_threads]

  const bool weighs = thread < split.count;
  const float maximum = weighs ? split.maximum[row * split.count + thread] : -FLT_MAX;
  const float largest = over_block(maximum, scratch, [](float x, float y) { return fmaxf(x, y); });
  const float factor = weighs ? exp2_fast(maximum - largest) : 0;
  factors[thread] = factor;
  const float part = weighs ? factor * split.sum[row * split.count + thread] : 0;
  const float sum = over_block(part, scratch, [](float x, float y) { return x + y; });
  const StackRows<scalar> context = rows_of<scalar>(arguments.context, place);
#pragma unroll
  for (int first = 0; first < head_tile; first += columns) {
    float x = 0;
    for (int i = team; i < split.count; i += teams)
      x += factors[i] * split.context[(row * split.count + i) * head_tile + first + column];
    __syncthreads();
    sums[thread] = x;
    __syncthreads();
    if (team > 0 || first + column >= context.columns) continue;
#pragma unroll
    for (int other = 1; other < teams; ++other) x += sums[other * columns + column];
    round_to(context[place.tile][first + column], x * inverse_sum(sum) * call.keep_scale);
  }
  if (thread == 0) *at_row(call.logsumexp, place, place.tile) = log_of_sum(largest, sum);
}

int64_t head_tile_of(const ForwardParams& p) {
  int64_t columns = 0;
  with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    columns = decltype(instance)::head_tile;
    return std::string();
  });
  return columns;
}

int64_t parts_of(const ForwardParams& p, const Split& split) { return p.batches * p.heads * p.rows * split.count; }

}  // namespace

bool has_few_rows(const ForwardParams& p) {
  if (p.query_offsets != nullptr) return divide_up(p.rows, larger(p.batches, 1)) * p.group <= few_rows;
  return p.rows * p.group <= few_rows || p.rows <= most_split_rows;
}

// Enough blocks to fill a GPU, none with less than `fewest_keys`.
Split split_source(const ForwardParams& p, void* workspace) {
  const int64_t blocks = larger(count_blocks(p, Of::rows, few_rows, 1), 1);
  const int64_t most = larger(divide_up(p.keys, fewest_keys), 1);
  const bool splits = p.rows <= most_split_rows && p.query_offsets == nullptr;
  const int64_t wanted = splits ? divide_up(enough_blocks, blocks) : 1;
  const int64_t count = wanted < most         ? (wanted < join_threads ? wanted : join_threads)
                        : most < join_threads ? most
                                              : join_threads;
  // whole tiles
  const int64_t keys = larger(divide_up(divide_up(p.keys, count), 64) * 64, 64);
  Split split{static_cast<int>(larger(divide_up(p.keys, keys), 1)), static_cast<int>(keys), nullptr, nullptr, nullptr};
  if (split.count == 1) return split;
  const int64_t parts = parts_of(p, split);
  split.context = static_cast<float*>(workspace);
  split.maximum = split.context + parts * head_tile_of(p);
  split.sum = split.maximum + parts;
  return split;
}

size_t split_workspace(const ForwardParams& p) {
  const Split split = split_source(p, nullptr);
  return split.count == 1 ? 0 : static_cast<size_t>(parts_of(p, split) * (head_tile_of(p) + 2)) * sizeof(float);
}

std::string join_parts(const ForwardParams& p, const Split& split, void* stream) {
  if (split.count == 1) return "";
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    const JoinArguments arguments{make_call(p), row_matrix(p, p.context, p.value_size), split};
    return launch("join of parts", join_kernel<typename I::scalar, I::head_tile>, count_blocks(p, Of::rows, 1, 1),
                  join_threads, (2 * join_threads + join_threads / 32) * sizeof(float), stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

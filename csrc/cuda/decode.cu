// Decoding: the one query row of every stream and head in one launch.
//
// This is a matter of reading keys and values fast. As many lanes as hold one key (8 columns each) form a team; the
// teams of a block of threads take neighbouring keys, each with a softmax of its own, and are merged in order at the
// end. Long sources are split among blocks, whose results a second small kernel merges.

#include "decode.h"

#include "dispatch.h"
#include "dropout.h"
#include "rows.h"
#include "softmax.h"

namespace gma {
namespace cuda {
namespace {

constexpr int decode_threads = 128, lane_columns = 8, keys_at_once = 4;

template <int head_tile>
struct Team {
  static constexpr int lanes = head_tile / lane_columns, count = decode_threads / lanes;
};

struct alignas(16) Chunk {
  uint32_t words[4];
};

// Eight columns of a row, 0 past the last.
template <class scalar>
GMA_DEVICE void load_columns(float (&x)[lane_columns], const scalar* row, int column, int columns, bool aligned) {
  if (aligned && column + lane_columns <= columns) {
    constexpr int chunks = lane_columns * sizeof(scalar) / 16, chunk = 16 / sizeof(scalar);
    union {
      Chunk chunk[chunks];
      scalar element[lane_columns];
    } loaded;
#pragma unroll
    for (int i = 0; i < chunks; ++i) loaded.chunk[i] = *reinterpret_cast<const Chunk*>(row + column + i * chunk);
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) x[i] = to_float(loaded.element[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < lane_columns; ++i) x[i] = column + i < columns ? to_float(row[column + i]) : 0;
}

// The sum over the lanes of a team, in all of them.
template <int lanes>
GMA_DEVICE float sum_of_team(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(whole_warp, x, distance);
  return x;
}

GMA_DEVICE float logit_of(PriorKind prior, const Row& row, float score, int key) {
  float x = 0;
  with_prior(prior, [&](auto kind) {
    x = logit<decltype(kind)::value>(row.prior, row.score_scale, score, static_cast<float>(key + 1 - row.prior.peak));
  });
  return x;
}

// Merges parts of one softmax: [count] maxima and sums, and weighted columns, `stride` floats apart.
struct Merged {
  float maximum, sum, column;
};

GMA_DEVICE Merged merge_parts(const float* maxima, const float* sums, const float* columns, int count,
                              int64_t stride, int64_t column_stride) {
  Merged merged{-FLT_MAX, 0, 0};
  for (int i = 0; i < count; ++i) merged.maximum = fmaxf(merged.maximum, maxima[i * stride]);
  for (int i = 0; i < count; ++i) {
    const float factor = exp2f(maxima[i * stride] - merged.maximum);
    merged.sum += factor * sums[i * stride];
    merged.column += factor * columns[i * column_stride];
  }
  return merged;
}

template <class scalar>
GMA_DEVICE void write_context(const ForwardArguments& arguments, const Place& place, const Merged& merged,
                              int column) {
  const HeadRows<scalar> context = rows_of<scalar>(arguments.context, place);
  if (column < context.columns)
    round_to(context[0][column], merged.column * inverse_sum(merged.sum) * arguments.call.keep_scale);
  if (column == 0) *at_row(arguments.call.logsumexp, place, 0) = log_of_sum(merged.maximum, merged.sum);
}

// place.tile is the part of the source
template <class scalar, int head_tile>
__global__ void __launch_bounds__(decode_threads) decode_kernel(ForwardArguments arguments) {
  using T = Team<head_tile>;
  const Call& call = arguments.call;
  const Place place = find_place(call);
  const int team = static_cast<int>(threadIdx.x) / T::lanes;
  const int column = static_cast<int>(threadIdx.x) % T::lanes * lane_columns;
  const Row row = load_row(call, place, 0);
  const Dropout dropout = make_dropout(call, place);
  const HeadRows<scalar> query = rows_of<scalar>(arguments.query, place);
  const HeadRows<scalar> keys = rows_of<scalar>(arguments.key, place), values = rows_of<scalar>(arguments.value, place);
  const int begin = place.tile * arguments.split_keys;
  const int end = begin + arguments.split_keys < row.visible ? begin + arguments.split_keys : row.visible;

  float q[lane_columns], context[lane_columns] = {};
  load_columns(q, query[0], column, query.columns, query.aligned);
  float maximum = -FLT_MAX, sum = 0;
  // every thread goes round equally often: teams of one warp shuffle together
  for (int first = begin; first < end; first += keys_at_once * T::count) {
    float logits[keys_at_once], v[keys_at_once][lane_columns];
    float largest = maximum;
#pragma unroll
    for (int u = 0; u < keys_at_once; ++u) {
      const int key = first + u * T::count + team;
      float k[lane_columns] = {};
      if (key < end) load_columns(k, keys[key], column, keys.columns, keys.aligned);
#pragma unroll
      for (int i = 0; i < lane_columns; ++i) v[u][i] = 0;
      if (key < end) load_columns(v[u], values[key], column, values.columns, values.aligned);
      float score = 0;
#pragma unroll
      for (int i = 0; i < lane_columns; ++i) score += q[i] * k[i];
      score = sum_of_team<T::lanes>(score);
      logits[u] = key < end ? logit_of(call.prior, row, score, key) : -INFINITY;
      largest = fmaxf(largest, logits[u]);
    }
    const float factor = exp2f(maximum - largest);
    maximum = largest;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) context[i] *= factor;
#pragma unroll
    for (int u = 0; u < keys_at_once; ++u) {
      const int key = first + u * T::count + team;
      float weight = exp2f(logits[u] - maximum);
      sum += weight;
      if (dropout.on && !(kept_of_four(dropout, 0, key / 4) >> key % 4 & 1)) weight = 0;
#pragma unroll
      for (int i = 0; i < lane_columns; ++i) context[i] += weight * v[u][i];
    }
  }

  float* const maxima = shared_memory<float>();
  float* const sums = maxima + T::count;
  float* const columns = sums + T::count;  // [teams, head_tile]
  if (column == 0) {
    maxima[team] = maximum;
    sums[team] = sum;
  }
#pragma unroll
  for (int i = 0; i < lane_columns; ++i) columns[team * head_tile + column + i] = context[i];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < head_tile; c += decode_threads) {
    const Merged merged = merge_parts(maxima, sums, columns + c, T::count, 1, head_tile);
    if (arguments.splits == 1) {
      write_context<scalar>(arguments, place, merged, c);
      continue;
    }
    float* part = arguments.partial + (place.flat_head * arguments.splits + place.tile) * (head_tile + 2);
    part[2 + c] = merged.column;
    if (c == 0) {
      part[0] = merged.maximum;
      part[1] = merged.sum;
    }
  }
}

template <class scalar, int head_tile>
__global__ void __launch_bounds__(decode_threads) merge_kernel(ForwardArguments arguments) {
  const Place place = find_place(arguments.call);
  constexpr int size = head_tile + 2;
  const float* parts = arguments.partial + place.flat_head * arguments.splits * size;
  for (int c = static_cast<int>(threadIdx.x); c < head_tile; c += decode_threads)
    write_context<scalar>(arguments, place, merge_parts(parts, parts + 1, parts + 2 + c, arguments.splits, size, size),
                          c);
}

struct Split {
  int64_t splits, keys;
};

// Enough blocks to fill a GPU, none with less than `fewest` keys. Depends on the shape alone.
Split split_source(const ForwardParams& p) {
  constexpr int64_t enough_blocks = 512, fewest = 128;
  const int64_t heads = larger(p.batches * p.heads, 1);
  const int64_t most = larger(divide_up(p.keys, fewest), 1), wanted = divide_up(enough_blocks, heads);
  const int64_t keys = larger(divide_up(p.keys, wanted < most ? wanted : most), 1);
  return {larger(divide_up(p.keys, keys), 1), keys};
}

}  // namespace

size_t decode_workspace(const ForwardParams& p) {
  const Split split = split_source(p);
  if (split.splits == 1) return 0;
  int64_t columns = 0;
  with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    columns = decltype(instance)::head_tile + 2;
    return std::string();
  });
  return static_cast<size_t>(p.batches * p.heads * split.splits * columns) * sizeof(float);
}

std::string decode(const ForwardParams& p, void* workspace, void* stream) {
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    using scalar = typename I::scalar;
    constexpr int head_tile = I::head_tile;
    const Split split = split_source(p);
    ForwardArguments arguments{};
    arguments.call = make_call(p);
    arguments.query = make_matrix(p, p.query, p.rows, p.head_size);
    arguments.key = make_matrix(p, p.key, p.keys, p.head_size);
    arguments.value = make_matrix(p, p.value, p.keys, p.value_size);
    arguments.context = make_matrix(p, p.context, p.rows, p.value_size);
    arguments.splits = static_cast<int>(split.splits);
    arguments.split_keys = static_cast<int>(split.keys);
    arguments.partial = static_cast<float*>(workspace);
    const int64_t heads = p.batches * p.heads;
    const size_t shared = Team<head_tile>::count * (head_tile + 2) * sizeof(float);
    const std::string error = launch("decode", decode_kernel<scalar, head_tile>, heads * split.splits, decode_threads,
                                     shared, stream, arguments);
    if (!error.empty() || split.splits == 1) return error;
    return launch("decode merge", merge_kernel<scalar, head_tile>, heads, decode_threads, 0, stream, arguments);
  });
}

}  // namespace cuda
}  // namespace gma

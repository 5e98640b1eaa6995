// Decoding: the one query row of every stream and head in one launch. Heads that share keys are left to the forward.
//
// This is a matter of reading keys and values fast. As many lanes as hold one key (8 columns each) form a team; the
// teams of a block of threads take neighbouring keys, each with a softmax of its own, and are merged in order at the
// end. All loads of a turn are on their way before the first is used.
#pragma once

#include "dispatch.h"
#include "dropout.h"
#include "rows.h"
#include "softmax.h"
#include "split.h"
#include "tile.h"

namespace gma {
namespace cuda {
namespace {

constexpr int decode_threads = 128, lane_columns = 8;

template <class scalar, int head_tile>
struct Team {
  static constexpr int lanes = head_tile / lane_columns, count = decode_threads / lanes;
  static constexpr int keys_at_once = sizeof(scalar) == 4 ? 2 : 4;
};

// Eight columns of a row, as they lie in memory; 0 past the last.
template <class scalar>
struct LaneColumns {
  static constexpr int chunk = 16 / sizeof(scalar), chunks = lane_columns / chunk;
  RawChunk<scalar> raw[chunks];

  __device__ __forceinline__ void load(const StackRows<scalar>& rows, int row, int column) {
#pragma unroll
    for (int i = 0; i < chunks; ++i) raw[i] = load_raw(rows[row], column + i * chunk, rows.columns, rows.aligned);
  }

  // All of them are there, and aligned.
  __device__ __forceinline__ void load_whole(const scalar* source) {
#pragma unroll
    for (int i = 0; i < chunks; ++i) raw[i].chunk = *reinterpret_cast<const Chunk*>(source + i * chunk);
  }

  __device__ __forceinline__ float operator[](int i) const { return to_float(raw[i / chunk].element[i % chunk]); }
};

// The sum over the lanes of a team, in all of them.
template <int lanes>
GMA_DEVICE float sum_of_team(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(whole_warp, x, distance);
  return x;
}

template <class scalar, int head_tile, bool general>
__global__ void __launch_bounds__(decode_threads) decode_kernel(ForwardArguments arguments) {
  using T = Team<scalar, head_tile>;
  constexpr int keys_at_once = T::keys_at_once;
  const Call& call = arguments.call;
  const Split& split = arguments.split;
  const Place place = find_place<general, Of::rows>(call, 1, split.count);
  const int row = general ? place.tile : 0;
  if (general && row >= place.rows) return;
  const int team = static_cast<int>(threadIdx.x) / T::lanes;
  const int column = static_cast<int>(threadIdx.x) % T::lanes * lane_columns;
  const KeyRange seen = keys_seen<general>(call, place, row);
  const Curve curve = load_curve(call, place, row, seen);
  const Dropout dropout = make_dropout(call, place);
  const StackRows<scalar> query = rows_of<scalar>(arguments.query, place);
  const StackRows<scalar> keys = keys_of<scalar>(arguments.key, place);
  const StackRows<scalar> values = keys_of<scalar>(arguments.value, place);
  const int part = place.part * split.keys, begin = general && seen.begin > part ? seen.begin : part;
  const int end = part + split.keys < seen.end ? part + split.keys : seen.end;
  const bool is_whole = keys.aligned && values.aligned && column + lane_columns <= keys.columns &&
                        column + lane_columns <= values.columns;

  float q[lane_columns], context[lane_columns] = {};
  LaneColumns<scalar> raw_query;
  raw_query.load(query, row, column);
#pragma unroll
  for (int i = 0; i < lane_columns; ++i) q[i] = raw_query[i] * call.score_scale;
  float maximum = -FLT_MAX, sum = 0;
  const scalar *next_key = keys[begin + team] + column, *next_value = values[begin + team] + column;
  // every thread goes round equally often: teams of one warp shuffle together
  for (int first = begin; first < end; first += keys_at_once * T::count) {
    LaneColumns<scalar> k[keys_at_once], v[keys_at_once];
    const bool is_full = first + keys_at_once * T::count <= end;
    if (is_whole && is_full) {
#pragma unroll
      for (int u = 0; u < keys_at_once; ++u) {
        k[u].load_whole(next_key);
        v[u].load_whole(next_value);
        next_key += T::count * keys.stride;
        next_value += T::count * values.stride;
      }
    } else {
#pragma unroll
      for (int u = 0; u < keys_at_once; ++u) {
        const int key = first + u * T::count + team, there = key < end ? key : end - 1;
        k[u].load(keys, there, column);
        v[u].load(values, there, column);
      }
    }
    float logits[keys_at_once];
#pragma unroll
    for (int u = 0; u < keys_at_once; ++u) {
      logits[u] = 0;
#pragma unroll
      for (int i = 0; i < lane_columns; ++i) logits[u] += q[i] * k[u][i];
      logits[u] = sum_of_team<T::lanes>(logits[u]);
    }
    const float t = static_cast<float>(first + team + 1 - curve.peak);
    with_prior(call.prior, [&](auto kind) {
#pragma unroll
      for (int u = 0; u < keys_at_once; ++u)
        logits[u] = logit<decltype(kind)::value>(curve, logits[u], t + static_cast<float>(u * T::count));
    });
    if (!is_full) {
#pragma unroll
      for (int u = 0; u < keys_at_once; ++u)
        if (first + u * T::count + team >= end) logits[u] = -INFINITY;
    }
    float largest = maximum;
#pragma unroll
    for (int u = 0; u < keys_at_once; ++u) largest = fmaxf(largest, logits[u]);
    const float factor = exp2_fast(maximum - largest);
    maximum = largest;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) context[i] *= factor;
#pragma unroll
    for (int u = 0; u < keys_at_once; ++u) {
      const int key = first + u * T::count + team;
      float weight = exp2_fast(logits[u] - maximum);
      sum += weight;
      if (dropout.on && !(kept_of_four(dropout, row, key / 4) >> key % 4 & 1)) weight = 0;
#pragma unroll
      for (int i = 0; i < lane_columns; ++i) context[i] += weight * v[u][i];
    }
  }

  // NaN in the sum of a row with impossible values shows in all that is made of it
  if (seen.end > 0 && !is_sound(call, place, row)) sum = NAN;
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
  const StackRows<scalar> output = rows_of<scalar>(arguments.context, place);
  const int64_t slot = (place.stack * place.rows + row) * split.count + place.part;
  for (int c = static_cast<int>(threadIdx.x); c < head_tile; c += decode_threads) {
    float largest = -FLT_MAX, total = 0, x = 0;
#pragma unroll
    for (int i = 0; i < T::count; ++i) largest = fmaxf(largest, maxima[i]);
#pragma unroll
    for (int i = 0; i < T::count; ++i) {
      const float factor = exp2_fast(maxima[i] - largest);
      total += factor * sums[i];
      x += factor * columns[i * head_tile + c];
    }
    if (split.count > 1) {
      split.context[slot * head_tile + c] = x;
      if (c == 0) {
        split.maximum[slot] = largest;
        split.sum[slot] = total;
      }
      continue;
    }
    if (c < output.columns) round_to(output[row][c], x * inverse_sum(total) * call.keep_scale);
    if (c == 0) *at_row(call.logsumexp, place, row) = log_of_sum(largest, total);
  }
}

}  // namespace

template <bool general>
std::string launch_decode(const ForwardParams& p, const Split& split, void* stream) {
  return with_instance(p.scalar_type, larger(p.head_size, p.value_size), [&](auto instance) {
    using I = decltype(instance);
    using T = Team<typename I::scalar, I::head_tile>;
    return launch("decode", decode_kernel<typename I::scalar, I::head_tile, general>,
                  count_blocks(p, Of::rows, 1, split.count), decode_threads,
                  T::count * (I::head_tile + 2) * sizeof(float), stream, make_forward(p, split));
  });
}

}  // namespace cuda
}  // namespace gma

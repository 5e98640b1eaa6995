// Random shapes, strides and edge values against a plain double implementation, at every SIMD level and
// for 1, 2 and 3 threads, which must give the same bits. Outputs start as NaN and every byte between and
// around their elements must stay untouched; inputs end where their allocation ends. Grouped heads, left bounds, packed
// sentences and gradients of the logsumexp come in by chance. Run as: fuzz [cases] [seed]
// `make sanitize` builds and runs it under AddressSanitizer and UndefinedBehaviorSanitizer.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "fuzz_buffer.h"

namespace {

// What a result should be, and how far rounding may take it.
struct Expected {
  vector<double> value, slack;
  int64_t sizes[4];

  Expected(int64_t b, int64_t h, int64_t r, int64_t c)
      : value(size_t(b * h * r * c)), slack(value.size()), sizes{b, h, r, c} {}
  size_t index(int64_t b, int64_t h, int64_t r, int64_t c) const {
    return size_t(((b * sizes[1] + h) * sizes[2] + r) * sizes[3] + c);
  }
  void add(int64_t b, int64_t h, int64_t r, int64_t c, double amount, double magnitude) {
    value[index(b, h, r, c)] += amount;
    slack[index(b, h, r, c)] += magnitude;
  }
};

uint32_t philox_word(uint64_t seed, uint32_t j, uint32_t i, uint32_t head) {
  uint32_t x[4] = {j >> 2, i, head, 0}, key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(x[0]) * 0xD2511F53u, p1 = uint64_t(x[2]) * 0xCD9E8D57u;
    const uint32_t next[4] = {uint32_t(p1 >> 32) ^ x[1] ^ key0, uint32_t(p1), uint32_t(p0 >> 32) ^ x[3] ^ key1,
                              uint32_t(p0)};
    std::memcpy(x, next, sizeof x);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return x[j & 3];
}

struct PriorValue {
  double logarithm, by_center, by_width;
};

// relative to the peak at position `peak`, with t = j - peak
PriorValue prior_value(PriorKind kind, double t, double peak, double center, double width) {
  const double w = std::max(width, 0x1p-40), limit = w * 0x1p80;
  const double d = std::max(-limit, std::min(limit, peak - center)), z = t + d;
  const double clamped = width < 0x1p-40 ? 0 : 1;
  const auto sign = [](double x) { return x < 0 ? -1.0 : x > 0 ? 1.0 : 0.0; };
  if (kind == PriorKind::gaussian) {
    const double logarithm = -(t / w) * ((t / 2 + d) / w);
    return {logarithm, t / w / w, clamped * -2 * std::max(logarithm, -1e30) / w};
  }
  if (kind == PriorKind::laplace) {
    const double logarithm = -std::sqrt(2.0) / w * (d < 0 ? std::max(-t, t + 2 * d) : std::max(t, -t - 2 * d));
    return {logarithm, std::sqrt(2.0) / w * (sign(z) - sign(d)), clamped * -std::max(logarithm, -1e30) / w};
  }
  if (kind == PriorKind::linear) {
    const double height = (w - std::fabs(z) / 2) / w;
    if (height <= 0x1p-10) return {std::log(0x1p-10), 0, 0};
    return {std::log(height), sign(z) / w / 2 / height, clamped * std::fabs(z) / w / w / 2 / height};
  }
  return {0, 0, 0};
}

struct Case {
  ScalarType type, row_type;
  int64_t B, H, T, S, D, Dv, group, sentences;
  bool packed;  // then B is 1, and T and S count the rows and keys of all sentences
  gma::BackwardParams p{};
  vector<Buffer> inputs;   // query, key, value, grad_context, center, width, grad_logsumexp
  vector<Buffer> outputs;  // context, logsumexp, weights, then the gradients
  vector<Expected> expected;
  vector<int32_t> visible, first, query_offsets, key_offsets;
  int64_t center_heads, width_heads, visible_heads, first_heads;

  Case() {
    type = static_cast<ScalarType>(pick(0, 3));
    row_type = type == ScalarType::float64 ? type : ScalarType::float32;
    const bool wide = chance(0.3);
    B = pick(chance(0.05) ? 0 : 1, 3);
    group = chance(0.3) ? pick(2, 4) : 1;
    H = pick(1, 3) * group;
    T = chance(0.3) ? pick(0, 4) : chance(0.15) ? pick(1, 320) : pick(1, 40);
    S = chance(0.05) ? 0 : chance(0.1) ? 1 : chance(0.15) ? pick(1, wide ? 400 : 900) : pick(1, 70);
    if (chance(0.1)) T = pick(32, 90), S = pick(512, 900);  // long enough for narrow widths to hide something
    D = chance(0.2) ? 64 : pick(1, wide ? 256 : 70);
    Dv = chance(0.3) ? D : pick(1, wide ? 256 : 70);
    p.scalar_type = type;
    p.prior = static_cast<PriorKind>(pick(0, 3));
    p.batches = B, p.heads = H, p.rows = T, p.keys = S, p.head_size = D, p.value_size = Dv;
    p.group = group;
    sentences = B;
    packed = chance(0.25);
    if (packed) pack_sentences();
    p.scale = chance(0.2) ? normal() : 1 / std::sqrt(double(D));
    if (chance(0.3)) {
      const double dropout = std::uniform_real_distribution<double>(0.01, 0.9)(random_engine);
      p.drop_below = uint32_t(std::floor(dropout * 4294967296.0));
      p.keep_scale = 1 / (1 - dropout);
      p.seed = random_engine();
    }
    center_heads = chance(0.5) ? 1 : H, width_heads = chance(0.5) ? 1 : H, visible_heads = chance(0.5) ? 1 : H;
    const int64_t key_heads = H / group;
    inputs.emplace_back(type, B, H, T, D, false);
    inputs.emplace_back(type, B, key_heads, S, D, false);
    inputs.emplace_back(type, B, key_heads, S, Dv, false);
    inputs.emplace_back(type, B, H, T, Dv, false);
    for (int64_t heads : {center_heads, width_heads, H}) inputs.emplace_back(row_type, B, heads, T, 1, false);
    for (size_t i : {0, 1, 2, 3, 6})
      inputs[i].for_each([&](auto... at) { write_element(inputs[i].at(at...), inputs[i].type, normal()); });
    fill_rows();
    const int64_t shapes[][4] = {{B, H, T, Dv},
                                 {B, H, T, 1},
                                 {B, H, T, S},
                                 {B, H, T, D},
                                 {B, key_heads, S, D},
                                 {B, key_heads, S, Dv},
                                 {B, center_heads, T, 1},
                                 {B, width_heads, T, 1}};
    for (int i = 0; i < 8; ++i) {
      const int64_t* n = shapes[i];
      const ScalarType element = i == 1 || i >= 6 ? row_type : type;
      outputs.emplace_back(element, n[0], n[1], n[2], n[3], true);
      expected.emplace_back(n[0], n[1], n[2], n[3]);
    }
    // the weights have no strides
    Buffer& weights = outputs[2];
    weights.strides[2] = S, weights.strides[1] = S * T, weights.strides[0] = S * T * H;
    weights.bytes.assign(size_t((B * H * T * S + 128) * bytes_of(type)), 0xff);
    connect();
    compute_expected();
  }

  // One to four sentences; T and S stay what they have together.
  void pack_sentences() {
    B = 1, sentences = pick(1, 4);
    const auto cut = [&](int64_t total, int64_t& longest) {
      vector<int32_t> offsets{0, int32_t(total)};
      for (int64_t b = 1; b < sentences; ++b) offsets.push_back(int32_t(pick(0, total)));
      std::sort(offsets.begin(), offsets.end());
      longest = 0;
      for (size_t b = 1; b < offsets.size(); ++b) longest = std::max<int64_t>(longest, offsets[b] - offsets[b - 1]);
      return offsets;
    };
    query_offsets = cut(T, p.rows), key_offsets = cut(S, p.keys);
    p.batches = sentences, p.packed_rows = T;
    p.query_offsets = query_offsets.data(), p.key_offsets = key_offsets.data();
  }
  // where the rows and keys of a sentence begin in its tensors, and how many there are
  int64_t batch(int64_t b) const { return packed ? 0 : b; }
  int64_t first_row(int64_t b) const { return packed ? query_offsets[size_t(b)] : 0; }
  int64_t first_key(int64_t b) const { return packed ? key_offsets[size_t(b)] : 0; }
  int64_t rows_of(int64_t b) const { return packed ? query_offsets[size_t(b) + 1] - first_row(b) : T; }
  int64_t keys_of(int64_t b) const { return packed ? key_offsets[size_t(b) + 1] - first_key(b) : S; }

  // b, i: in the tensors
  int32_t visible_at(int64_t b, int64_t h, int64_t i) const {
    return visible[size_t((b * visible_heads + h % visible_heads) * T + i)];
  }
  int32_t first_at(int64_t b, int64_t h, int64_t i) const {
    return first.empty() ? 0 : first[size_t((b * first_heads + h % first_heads) * T + i)];
  }

  // rows that see nothing have NaN for center and width
  void fill_rows() {
    visible.resize(size_t(B * visible_heads * T));
    first_heads = chance(0.5) ? 1 : H;
    if (chance(0.4)) {
      first.resize(size_t(B * first_heads * T));
      const int64_t window = pick(1, S + 1), kind = pick(0, 2);
      for (size_t i = 0; i < first.size(); ++i) {
        const int64_t along = T > 0 ? (int64_t(i) % T + 2) * std::max<int64_t>(S, 1) / T : 0;
        first[i] = int32_t(std::max<int64_t>(0, kind == 0 ? along - window : kind == 1 ? pick(0, S) : S - window));
      }
    }
    const int style = int(pick(0, 3));
    for (size_t i = 0; i < visible.size(); ++i) {
      const int64_t along = T > 0 ? (int64_t(i) % T + 2) * std::max<int64_t>(S, 1) / T : 0;
      visible[i] = int32_t(style == 0 ? S : style == 1 ? along : style == 2 ? pick(0, S) : S + pick(0, 3));
      if (chance(0.05)) visible[i] = 0;
    }
    const int64_t b_stride = inputs[4].strides[0] && inputs[5].strides[0];
    const int64_t i_stride = inputs[4].strides[2] && inputs[5].strides[2];
    const double spread = chance(0.4) ? 4 : double(S) / 3;
    for (int which : {4, 5})
      inputs[size_t(which)].for_each([&](int64_t b, int64_t h, int64_t i, int64_t) {
        static const double edges[] = {0, 1e-42, 1e-30, 1e-12, 0.5, 1e6, 1e20, 3e38};
        double value = std::uniform_real_distribution<double>(-3, double(S) * 1.3 + 3)(random_engine);
        if (chance(0.15)) value = edges[pick(0, 7)] * (chance(0.5) ? 1 : -1);
        if (which == 5) value = chance(0.85) ? std::fabs(normal()) * spread + 0.3 : edges[pick(1, 7)];
        bool dead = b_stride && i_stride;
        for (int64_t head = 0; head < H; ++head)
          if (inputs[size_t(which)].sizes[1] == 1 || head == h) dead &= visible_at(b, head, i) <= first_at(b, head, i);
        if (dead && inputs[size_t(which)].strides[1] != 0) value = std::nan("");
        write_element(inputs[size_t(which)].at(b, h, i, 0), row_type, value);
      });
  }

  void connect() {
    p.query = inputs[0].view<const void>(), p.key = inputs[1].view<const void>();
    p.value = inputs[2].view<const void>(), p.grad_context = inputs[3].view<const void>();
    p.center = inputs[4].view<const void>(), p.width = inputs[5].view<const void>();
    p.visible = {visible.data(), visible_heads * T, visible_heads == 1 ? 0 : T, 1};
    if (!first.empty()) p.first = {first.data(), first_heads * T, first_heads == 1 ? 0 : T, 1};
    if (chance(0.4)) p.grad_logsumexp = inputs[6].view<const void>();
    p.context = outputs[0].view<void>(), p.logsumexp = outputs[1].view<void>();
    p.grad_query = outputs[3].view<void>(), p.grad_key = outputs[4].view<void>();
    p.grad_value = outputs[5].view<void>();
    p.grad_center = outputs[6].view<void>(), p.grad_width = outputs[7].view<void>();
  }

  void compute_expected() {
    for (int64_t b = 0; b < sentences; ++b)
      for (int64_t h = 0; h < H; ++h)
        for (int64_t i = 0; i < rows_of(b); ++i) expect_row(b, h, i);
    for (size_t k = 0; k < expected.size(); ++k)
      for (size_t i = 0; i < expected[k].value.size(); ++i)
        expected[k].slack[i] +=
            2 * epsilon_of(outputs[k].type) * std::fabs(expected[k].value[i]) + 1e-7 * (bytes_of(outputs[k].type) == 2);
  }

  // Magnitudes follow each value through the same sums, with absolute values.
  void expect_row(int64_t sentence, int64_t h, int64_t row) {
    const int64_t b = batch(sentence), i = first_row(sentence) + row, key = first_key(sentence), kh = h / group;
    const int64_t begin = first_at(b, h, i), n = std::min<int64_t>(visible_at(b, h, i), keys_of(sentence)) - begin;
    if (n <= 0) {
      expected[1].add(b, h, i, 0, -infinity, 0);
      return;
    }
    const double center = inputs[4].get(b, h % center_heads, i, 0), width = inputs[5].get(b, h % width_heads, i, 0);
    const double peak = std::max(double(begin + 1), std::min(double(begin + n), std::round(center)));
    vector<double> weight(size_t(n), 0.0), grad(size_t(n), 0.0), grad_size(size_t(n), 0.0), keep(size_t(n), 1.0);
    vector<PriorValue> prior(size_t(n), PriorValue{});
    double largest = -infinity, dot_size = 0;
    for (int64_t j = 0; j < n; ++j) {
      prior[size_t(j)] = prior_value(p.prior, double(begin + j + 1) - peak, peak, center, width);
      double dot = 0, size = 0;
      for (int64_t c = 0; c < D; ++c) {
        const double product = p.scale * inputs[0].get(b, h, i, c) * inputs[1].get(b, kh, key + begin + j, c);
        dot += product, size += std::fabs(product);
      }
      weight[size_t(j)] = dot + prior[size_t(j)].logarithm;
      largest = std::max(largest, weight[size_t(j)]);
      dot_size = std::max(dot_size, size);
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - largest);
    const double unit = epsilon_of(row_type);
    // logits err by their size; where they differ by more than about 100 the weight is 0 in any case
    const double relative = unit * (60 + 8 * (dot_size + std::min(4 * dot_size + 100, std::fabs(largest) + 100)));
    expected[1].add(b, h, i, 0, largest + std::log(sum), relative * (1 + std::fabs(largest)));
    double delta = 0, delta_size = 0;
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = size_t(j);
      weight[at] /= sum;
      if (p.drop_below > 0)
        keep[at] = philox_word(p.seed, uint32_t(begin + j), uint32_t(row), uint32_t(sentence * H + h)) >= p.drop_below
                       ? p.keep_scale
                       : 0;
      for (int64_t c = 0; c < Dv; ++c) {
        const double product = keep[at] * inputs[3].get(b, h, i, c) * inputs[2].get(b, kh, key + begin + j, c);
        grad[at] += product, grad_size[at] += std::fabs(product);
      }
      delta += weight[at] * grad[at], delta_size += weight[at] * grad_size[at];
    }
    if (p.grad_logsumexp.data != nullptr) {
      delta -= inputs[6].get(b, h, i, 0);
      delta_size += std::fabs(inputs[6].get(b, h, i, 0));
    }
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = size_t(j);
      const int64_t seen = key + begin + j;
      const double beta = weight[at], ds = beta * (grad[at] - delta);
      // a weight this far below the largest may become 0
      const double negligible = row_type == ScalarType::float32 ? 1e-26 : 1e-260;
      const double slack = beta * relative + (beta < negligible ? beta : 0);
      const double ds_size = slack * (grad_size[at] + delta_size);
      // as operands of products of bfloat16 both are rounded to it
      const double rounding = type == ScalarType::bfloat16 ? 0x1p-8 : 0;
      const double used_slack = slack + rounding * beta, used_ds = ds_size + rounding * std::fabs(ds);
      if (!packed) expected[2].add(b, h, i, begin + j, beta, slack);
      for (int64_t c = 0; c < Dv; ++c) {
        const double value = inputs[2].get(b, kh, seen, c), context_grad = inputs[3].get(b, h, i, c);
        expected[0].add(b, h, i, c, beta * keep[at] * value, used_slack * keep[at] * std::fabs(value));
        expected[5].add(b, kh, seen, c, beta * keep[at] * context_grad,
                        used_slack * keep[at] * std::fabs(context_grad));
      }
      for (int64_t c = 0; c < D; ++c) {
        const double of_key = p.scale * inputs[1].get(b, kh, seen, c), query = p.scale * inputs[0].get(b, h, i, c);
        expected[3].add(b, h, i, c, ds * of_key, used_ds * std::fabs(of_key));
        expected[4].add(b, kh, seen, c, ds * query, used_ds * std::fabs(query));
      }
      const PriorValue& own = prior[at];
      expected[6].add(b, h % center_heads, i, 0, ds * own.by_center, ds_size * std::fabs(own.by_center));
      expected[7].add(b, h % width_heads, i, 0, ds * own.by_width, ds_size * std::fabs(own.by_width));
      // the kink of the linear prior's floor falls on either side
      if (p.prior == PriorKind::linear) {
        expected[6].slack[expected[6].index(b, h % center_heads, i, 0)] += ds_size * 600 / std::max(width, 0x1p-40);
        expected[7].slack[expected[7].index(b, h % width_heads, i, 0)] += ds_size * 600 / std::max(width, 0x1p-40);
      }
    }
  }

  void run(int threads) {
    for (Buffer& output : outputs) std::fill(output.bytes.begin(), output.bytes.end(), 0xff);
    const gma::Parallel parallel{threads, [](int workers, void (*work)(void*), void* state) {
      vector<std::thread> pool;
      for (int worker = 1; worker < workers; ++worker) pool.emplace_back(work, state);
      work(state);
      for (std::thread& thread : pool) thread.join();
    }};
    gma::forward(p, parallel);
    gma::backward(p, parallel);
    if (!packed) gma::attention_weights(p, outputs[2].view<void>().data, parallel);
  }

  // an empty string when all is well
  std::string problem() {
    static const char* names[] = {"context",  "logsumexp",  "weights",     "grad_query",
                                  "grad_key", "grad_value", "grad_center", "grad_width"};
    std::string text;
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].surroundings_intact()) return std::string("wrote around ") + names[k];
      if (packed && k == 2) continue;
      outputs[k].for_each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
        const size_t at = expected[k].index(b, h, r, c);
        const double got = outputs[k].get(b, h, r, c), want = expected[k].value[at];
        const double limit = expected[k].slack[at] + 1e-35;
        const bool overflows = std::fabs(want) > 1e37 && row_type == ScalarType::float32;
        if (got == want || std::fabs(got - want) <= limit || overflows || !text.empty()) return;
        char line[200];
        std::snprintf(line, sizeof line, "%s[%d, %d, %d, %d] is %.9g, expected %.9g +- %.2g", names[k], int(b), int(h),
                      int(r), int(c), got, want, limit);
        text = line;
      });
    }
    return text;
  }

  std::string description() const {
    char line[200];
    std::snprintf(line, sizeof line,
                  "dtype %d prior %d B=%d H=%d/%d T=%d S=%d D=%d Dv=%d dropout %d first %d logsumexp %d packed %d",
                  int(type), int(p.prior), int(B), int(H), int(group), int(T), int(S), int(D), int(Dv),
                  int(p.drop_below > 0), int(!first.empty()), int(p.grad_logsumexp.data != nullptr),
                  int(packed ? sentences : 0));
    return line;
  }
};

// a bad value is reported with its place
bool rejects_bad_values() {
  float center[2] = {1, std::nanf("")}, width[2] = {1, -1}, out[64];
  int32_t visible[2] = {1, -2};
  gma::ForwardParams p{};
  p.batches = p.heads = p.keys = p.head_size = p.value_size = 1, p.rows = 2;
  const auto message = [&](int32_t last_visible, float last_center) {
    visible[1] = last_visible, center[1] = last_center;
    p.center = {center, 2, 0, 1}, p.width = {width, 2, 0, 1}, p.visible = {visible, 2, 0, 1};
    p.query = {center, 0, 0, 0}, p.key = p.value = p.query, p.context = {out, 0, 0, 0}, p.logsumexp = {out, 0, 0, 0};
    try {
      gma::forward(p, {1, nullptr});
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  return message(-2, 1) == "visible[b=0, h=0, i=1] is -2; expected 0 or more" &&
         message(1, 1) == "width[b=0, h=0, i=1] is -1; expected a finite positive number where visible > 0" &&
         (width[1] = 1,
          message(1, std::nanf("")) == "center[b=0, h=0, i=1] is nan; expected a finite number where visible > 0") &&
         message(0, std::nanf("")).empty();
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 200;
  random_engine.seed(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  int failed = rejects_bad_values() ? 0 : 1;
  for (int index = 0; index < cases; ++index) {
    Case one;
    std::string problem;
    for (const std::string& level : gma::simd_levels()) {
      gma::use_simd(level);
      vector<vector<unsigned char>> bits;
      for (int threads = 1; threads <= 3 && problem.empty(); ++threads) {
        one.run(threads);
        for (size_t k = 0; k < one.outputs.size(); ++k) {
          if (threads == 1) bits.push_back(one.outputs[k].bytes);
          else if (bits[k] != one.outputs[k].bytes) problem = "threads change the bits";
        }
        if (threads == 1) problem = one.problem();
      }
      if (!problem.empty()) {
        std::printf("case %d, %s: %s (%s)\n", index, level.c_str(), problem.c_str(), one.description().c_str());
        break;
      }
    }
    failed += !problem.empty();
  }
  std::printf("%d passed, %d failed\n", cases - failed, failed);
  return failed > 0;
}

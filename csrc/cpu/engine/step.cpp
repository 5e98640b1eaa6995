// The arithmetic of a batch: rows through the encoder and through the decoder.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "batch.h"

namespace gma {
namespace engine {
namespace {

// rows that are worked on together where there are many: their middle parts stay in the cache
constexpr int64_t chunk_rows = 256;

constexpr double largest_exponent = 15;
constexpr float narrowest = 0.1f, widest = 1e4f;
constexpr double reference_first = 0.9, reference_last = 1100;
constexpr double rounding = 1e-9;  // 0.29 * 100 is a little less than 29 in floating point

class Stopwatch {
 public:
  // adds what has passed since the last call to a part of the profile
  void stop(double& part) {
    const auto now = std::chrono::steady_clock::now();
    part += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

float predicted(const EngineLevel& level, const Predictor& predictor, int64_t output, const float* hidden,
                int64_t columns) {
  const float exponent = level.dot(hidden, predictor.output.data() + output * padded(columns), columns);
  // comparisons that keep a NaN
  const float bounded = exponent > float(largest_exponent)    ? float(largest_exponent)
                        : exponent < -float(largest_exponent) ? -float(largest_exponent)
                                                              : exponent;
  return std::exp(bounded);
}

double clamped(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

int32_t within(double heard, int64_t longest) {
  // a NaN sees everything, so that it is met and named
  if (!(heard < double(longest))) return int32_t(longest);
  return heard > 0 ? int32_t(heard) : 0;
}

}  // namespace

void Batch::reserve_rows(int64_t rows) {
  const Settings& s = model_->settings;
  for (Array<float>* buffer : {&hidden_, &query_, &context_, &change_, &gathered_hidden_, &gathered_query_})
    buffer->reserve(rows * model_->stride);
  wide_.reserve(std::min(rows, chunk_rows) * padded(std::max(3 * s.width, s.feed_forward)));
}

void Batch::product(Team& team, const Linear& linear, const float* x, int64_t x_stride, int64_t rows, float* y,
                    bool relu) {
  const PackedWeights& weights = linear.packed;
  const EngineLevel& level = model_->level;
  const int64_t y_stride = padded(weights.outputs), panels = weights.panel_count();
  Inputs inputs{x, nullptr, nullptr, rows, x_stride};
  if (weights.corrections != nullptr) {
    const int64_t depth = padded(weights.inputs);
    bytes_.reserve((rows + byte_rows - 1) / byte_rows * byte_rows * depth);
    scales_.reserve(rows);
    each_row(team, rows, weights.inputs, [&](int64_t row, int) {
      level.quantize(x + row * x_stride, weights.inputs, &bytes_[row * depth], &scales_[row]);
    });
    inputs = {nullptr, bytes_.data(), scales_.data(), rows, depth};
  }
  if (team.threads() == 1 || rows * weights.inputs * weights.outputs < worth_sharing)
    return level.multiply(weights, inputs, 0, panels, y, y_stride, relu);
  const int64_t tasks = std::min<int64_t>(panels, 8 * team.threads());
  team.each(tasks, [&](int64_t index, int) {
    const int64_t first = panels * index / tasks;
    level.multiply(weights, inputs, first, panels * (index + 1) / tasks - first, y, y_stride, relu);
  });
}

// hidden = norm(hidden + change) of some rows
void Batch::normalize(Team& team, const Norm& norm, const float* change, int64_t first, int64_t rows) {
  const int64_t stride = model_->stride;
  each_row(team, rows, 8 * stride, [&](int64_t row, int) {
    float* x = hidden_.data() + (first + row) * stride;
    model_->level.add_and_normalize(x, change + row * stride, norm.gain.data(), norm.bias.data(), norm.epsilon,
                                    model_->settings.width, x);
  });
}

void Batch::reach_positions(int64_t count) {
  if (count <= position_count_) return;
  const Settings& s = model_->settings;
  count = std::max<int64_t>({count, 2 * position_count_, 64});
  positions_.reserve(count * s.width);
  for (int64_t i = 0; i < s.width; ++i) {
    const double frequency = std::exp(double(i / 2 * 2) * (-std::log(1e4) / double(s.width)));
    for (int64_t p = 0; p < count; ++p)
      positions_[p * s.width + i] =
          float(i % 2 == 0 ? std::sin(double(p) * frequency) : std::cos(double(p) * frequency));
  }
  position_count_ = count;
}

void Batch::embed(Team& team, const float* table, const std::vector<int64_t>& tokens,
                  const std::vector<Place>& places) {
  const int64_t width = model_->settings.width, stride = model_->stride;
  int64_t furthest = 0;
  for (const Place& place : places) furthest = std::max(furthest, place.position);
  reach_positions(furthest + 1);
  reserve_rows(int64_t(places.size()));
  const float scale = float(std::sqrt(double(width)));
  each_row(team, int64_t(places.size()), stride, [&](int64_t row, int) {
    const float* word = table + tokens[size_t(row)] * width;
    const float* position = positions_.data() + places[size_t(row)].position * width;
    float* to = hidden_.data() + row * stride;
    for (int64_t c = 0; c < width; ++c) to[c] = word[c] * scale + position[c];
    for (int64_t c = width; c < stride; ++c) to[c] = 0;
  });
}

// Keys and values of all rows are written before any row looks: a bidirectional one looks ahead.
void Batch::attend_self(Team& team, const SelfAttention& layer, Caches caches, int64_t index,
                        const std::vector<Place>& places) {
  const Settings& s = model_->settings;
  const int64_t stride = model_->stride, rows = int64_t(places.size()), wide = padded(3 * s.width);
  Stopwatch watch;
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    product(team, layer.input, hidden_.data() + first * stride, stride, count, wide_.data());
    for (int64_t row = 0; row < count; ++row) {
      const Place& place = places[size_t(first + row)];
      const float* from = wide_.data() + row * wide;
      std::copy_n(from, s.width, query_.data() + (first + row) * stride);
      std::copy_n(from + s.width, 2 * s.width, (place.sentence->*caches)[size_t(index)].row(place.position));
    }
  }
  watch.stop(profile_.products);
  int64_t longest = 0;
  for (const Place& place : places) longest = std::max(longest, place.visible);
  const int64_t scratch = attention_scratch(model_->head_size(), longest);
  attention_.reserve(scratch * team.threads());
  each_row(team, rows, longest * s.width * 2, [&](int64_t row, int thread) {
    static constexpr float one = 1;
    const Place& place = places[size_t(row)];
    const int32_t visible = int32_t(place.visible);
    const AttendedRow attended{query_.data() + row * stride,
                               (place.sentence->*caches)[size_t(index)].data(),
                               2 * s.width,
                               (places[size_t(std::min(row + 1, rows - 1))].sentence->*caches)[size_t(index)].data(),
                               s.heads,
                               model_->head_size(),
                               float(1 / std::sqrt(double(model_->head_size()))),
                               PriorKind::none,
                               &one,
                               &one,
                               &visible,
                               0,
                               context_.data() + row * stride};
    model_->level.attend(attended, attention_.data() + thread * scratch);
  });
  watch.stop(profile_.attention);
  product(team, layer.output, context_.data(), stride, rows, change_.data());
  watch.stop(profile_.products);
  normalize(team, layer.norm, change_.data(), 0, rows);
  watch.stop(profile_.norms);
}

void Batch::feed_forward(Team& team, const FeedForward& layer, int64_t rows) {
  const int64_t stride = model_->stride;
  Stopwatch watch;
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    product(team, layer.expand, hidden_.data() + first * stride, stride, count, wide_.data(), true);
    product(team, layer.contract, wide_.data(), padded(model_->settings.feed_forward), count, change_.data());
    watch.stop(profile_.products);
    normalize(team, layer.norm, change_.data(), first, count);
    watch.stop(profile_.norms);
  }
}

void Batch::encode(Team& team, const std::vector<Place>& places) {
  const Settings& s = model_->settings;
  const int64_t rows = int64_t(places.size()), stride = model_->stride, wide = padded(2 * s.width);
  const Profile before = profile_;
  Stopwatch watch;
  for (size_t i = 0; i < model_->encoder.size(); ++i) {
    attend_self(team, model_->encoder[i].self, &Sentence::encoder, int64_t(i), places);
    feed_forward(team, model_->encoder[i].feed_forward, rows);
  }
  for (size_t i = 0; i < model_->decoder.size(); ++i) {
    for (int64_t first = 0; first < rows; first += chunk_rows) {
      const int64_t count = std::min(chunk_rows, rows - first);
      product(team, model_->decoder[i].memory, hidden_.data() + first * stride, stride, count, wide_.data());
      for (int64_t row = 0; row < count; ++row) {
        const Place& place = places[size_t(first + row)];
        std::copy_n(wide_.data() + row * wide, 2 * s.width, place.sentence->source[i].row(place.position));
      }
    }
  }
  for (int64_t first = 0; model_->gain && first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    product(team, model_->gain->heard, hidden_.data() + first * stride, stride, count, wide_.data());
    for (int64_t row = 0; row < count; ++row) {
      const Place& place = places[size_t(first + row)];
      std::copy_n(wide_.data() + row * stride, s.width, place.sentence->heard.row(place.position));
    }
  }
  profile_ = before;
  watch.stop(profile_.encoder);
}

// What stands in front of a layer's cross-attention, in `query_`: where does each row look, and what does it need?
void Batch::align(Team& team, int64_t index, const std::vector<Sentence*>& rows) {
  const Settings& s = model_->settings;
  const DecoderLayer& layer = model_->decoder[size_t(index)];
  const int64_t stride = model_->stride, count = int64_t(rows.size());
  const float scale = float(1 / std::sqrt(double(model_->head_size())));
  if (s.policy == Policy::gain && index == 0) return align_by_gain(team, rows);
  const bool predicts = layer.step.has_value();
  if (predicts) {
    product(team, layer.step->hidden, query_.data(), stride, count, context_.data());
    if (layer.spread) product(team, layer.spread->hidden, query_.data(), stride, count, change_.data());
  }
  each_row(team, count, predicts ? 20 * stride : 1, [&](int64_t row, int) {
    Sentence& sentence = *rows[size_t(row)];
    std::vector<Aligned>& aligned = sentence.alignments[size_t(index)];
    const int64_t longest = sentence.source_length();
    if (!predicts && s.shares_layers) {
      aligned = sentence.alignments[0];
      for (Aligned& a : aligned) a.visible = std::min<int32_t>(a.visible, int32_t(longest));
      return;
    }
    if (s.policy == Policy::offline) {
      for (Aligned& a : aligned) a = {1, 1, int32_t(longest), 0, 1, a.position};
      return;
    }
    if (s.policy == Policy::wait_k) {
      for (Aligned& a : aligned) {
        const double place = std::isnan(a.position) ? 1 : a.position + 1;
        const double diagonal = place - 1 - std::floor(s.catch_up * place + rounding);
        a = {float(diagonal), 1, within(diagonal + sentence.delta, longest), 0, place, a.position};
      }
      return;
    }
    float* hidden = context_.data() + row * stride;
    float* spread = change_.data() + row * stride;
    model_->level.hyperbolic_tangent(hidden, s.width, scale);
    if (layer.spread) model_->level.hyperbolic_tangent(spread, s.width, scale);
    for (int64_t output = 0; output < s.alignments; ++output) {
      Aligned& a = aligned[size_t(output)];
      double step = predicted(model_->level, *layer.step, output, hidden, s.width), from = 1;
      if (!s.absolute_positions) {
        if (!std::isnan(a.position)) from = a.position;
        else if (s.reference_convention) step = 0;
      }
      const double position = from + step;
      const double place = s.reference_convention ? clamped(position - 1, reference_first, reference_last) : position;
      const float center = float(s.reference_convention ? place + 1 : place);
      float width = float(place * s.width_factor);
      if (layer.spread) {
        width = predicted(model_->level, *layer.spread, output, spread, s.width);
        width = width < narrowest ? narrowest : width > widest ? widest : width;
      }
      const double heard = double(center) + sentence.delta;
      const double whole = s.reference_convention ? std::ceil(heard - 1) : std::floor(heard);
      a = {center, width, within(whole, longest), 0, position, a.position};
    }
  });
  for (Sentence* sentence : rows) settle(index, *sentence);
}

// What a row asked for has arrived, or the source has ended.
void Batch::resume(int64_t index, Sentence& sentence) {
  if (model_->settings.policy == Policy::gain && index == 0) {
    scan(sentence, sentence.asking.data(), change_.data());
  } else {
    for (Aligned& a : sentence.alignments[size_t(index)])
      a.visible = std::min<int32_t>(a.visible, int32_t(sentence.source_length()));
  }
  settle(index, sentence);
}

void Batch::settle(int64_t index, Sentence& sentence) {
  int32_t needed = 0;
  for (const Aligned& a : sentence.alignments[size_t(index)]) needed = std::max(needed, a.visible);
  sentence.layer = index;
  sentence.needed = needed;
}

// Rows that cannot pass a layer now are kept with their sentences; those that can, and may have been kept, stand in
// `hidden_` and `query_` afterwards, slots ascending.
void Batch::keep_and_gather(int64_t index, std::vector<Sentence*>& rows, const std::vector<Sentence*>& going) {
  const int64_t stride = model_->stride;
  std::vector<Sentence*> ready;
  for (Sentence* sentence : going)
    if (sentence->layer == index && sentence->can_go_on()) ready.push_back(sentence);
  if (ready == rows) return;
  for (size_t row = 0; row < rows.size(); ++row) {
    Sentence& sentence = *rows[row];
    sentence.row = int64_t(row);
    if (sentence.can_go_on()) continue;
    sentence.hidden.reserve(stride);
    sentence.query.reserve(stride);
    std::copy_n(hidden_.data() + int64_t(row) * stride, stride, sentence.hidden.data());
    std::copy_n(query_.data() + int64_t(row) * stride, stride, sentence.query.data());
  }
  for (size_t row = 0; row < ready.size(); ++row) {
    const Sentence& sentence = *ready[row];
    const bool is_here = sentence.row >= 0;
    std::copy_n(is_here ? hidden_.data() + sentence.row * stride : sentence.hidden.data(), stride,
                gathered_hidden_.data() + int64_t(row) * stride);
    std::copy_n(is_here ? query_.data() + sentence.row * stride : sentence.query.data(), stride,
                gathered_query_.data() + int64_t(row) * stride);
  }
  for (Sentence* sentence : rows) sentence->row = -1;
  hidden_.swap(gathered_hidden_);
  query_.swap(gathered_query_);
  rows = std::move(ready);
}

// hidden = norm(hidden + what the source gives to `query_`), and what follows in the layer
void Batch::attend_source(Team& team, int64_t index, const std::vector<AttendedSource>& rows) {
  const Settings& s = model_->settings;
  const DecoderLayer& layer = model_->decoder[size_t(index)];
  const int64_t stride = model_->stride, count = int64_t(rows.size());
  Stopwatch watch;
  int64_t longest = 0;
  for (const AttendedSource& row : rows)
    for (int64_t a = 0; a < row.alignments; ++a) {
      const Aligned& aligned = row.aligned[a];
      longest = std::max<int64_t>(longest, aligned.visible);
      constexpr float most = std::numeric_limits<float>::max();
      const bool fine = aligned.center >= -most && aligned.center <= most && aligned.width > 0 && aligned.width <= most;
      if (aligned.visible == 0 || fine) continue;
      std::ostringstream message;
      message << "in decoder layer " << index << ", slot " << row.sentence->slot << " looks at position "
              << aligned.center << " with width " << aligned.width
              << "; expected finite numbers and a width above 0: are the model's weights finite?";
      throw std::invalid_argument(message.str());
    }
  const int64_t scratch = attention_scratch(model_->head_size(), longest);
  attention_.reserve(scratch * team.threads());
  const PriorKind prior = s.policy == Policy::gaussian ? s.prior : PriorKind::none;
  each_row(team, count, longest * s.width * 2, [&](int64_t i, int thread) {
    const AttendedSource& row = rows[size_t(i)];
    const AttendedRow attended{query_.data() + i * stride,
                               row.sentence->source[size_t(index)].data(),
                               2 * s.width,
                               rows[size_t(std::min(i + 1, count - 1))].sentence->source[size_t(index)].data(),
                               s.heads,
                               model_->head_size(),
                               float(1 / std::sqrt(double(model_->head_size()))),
                               prior,
                               &row.aligned->center,
                               &row.aligned->width,
                               &row.aligned->visible,
                               row.alignments == 1 ? 0 : int64_t(sizeof(Aligned) / sizeof(float)),
                               context_.data() + i * stride};
    model_->level.attend(attended, attention_.data() + thread * scratch);
  });
  watch.stop(profile_.attention);
  product(team, layer.output, context_.data(), stride, count, change_.data());
  watch.stop(profile_.products);
  normalize(team, layer.norm, change_.data(), 0, count);
  watch.stop(profile_.norms);
  feed_forward(team, layer.feed_forward, count);
}

void Batch::step(Team& team, const std::vector<Sentence*>& going) {
  const int64_t stride = model_->stride;
  std::vector<Sentence*> rows;
  std::vector<int64_t> stood, tokens;
  std::vector<Place> places;
  for (Sentence* sentence : going) {
    stood.push_back(sentence->layer);
    if (sentence->layer != nowhere) continue;
    rows.push_back(sentence);
    tokens.push_back(sentence->token);
    places.push_back({sentence, sentence->written, sentence->written + 1});
    for (GrowingRows& own : sentence->own) own.reserve(sentence->written, sentence->written + 1);
  }
  reserve_rows(int64_t(going.size()));
  embed(team, model_->target_embedding, tokens, places);
  std::vector<AttendedSource> attended;
  for (size_t index = 0; index < model_->decoder.size(); ++index) {
    const DecoderLayer& layer = model_->decoder[index];
    if (!rows.empty()) {
      places.clear();
      for (Sentence* sentence : rows) places.push_back({sentence, sentence->written, sentence->written + 1});
      attend_self(team, layer.self, &Sentence::own, int64_t(index), places);
      Stopwatch watch;
      product(team, layer.query, hidden_.data(), stride, int64_t(rows.size()), query_.data());
      watch.stop(profile_.products);
      align(team, int64_t(index), rows);
      watch.stop(profile_.alignment);
    }
    for (size_t i = 0; i < going.size(); ++i)
      if (stood[i] == int64_t(index)) resume(int64_t(index), *going[i]);
    keep_and_gather(int64_t(index), rows, going);
    if (rows.empty()) continue;
    attended.clear();
    for (Sentence* sentence : rows) {
      sentence->furthest = std::max(sentence->furthest, sentence->needed);
      const std::vector<Aligned>& aligned = sentence->alignments[index];
      attended.push_back({sentence, aligned.data(), int64_t(aligned.size())});
    }
    attend_source(team, int64_t(index), attended);
  }
  choose(team, rows);
}

void Batch::choose(Team& team, const std::vector<Sentence*>& rows) {
  const Settings& s = model_->settings;
  const int64_t count = int64_t(rows.size()), vocabulary = padded(s.target_vocabulary);
  if (count > 0) {
    Stopwatch watch;
    logits_.reserve(count * vocabulary);
    product(team, model_->project, hidden_.data(), model_->stride, count, logits_.data());
    watch.stop(profile_.projection);
    scores_.best.resize(size_t(count));
    each_row(team, count, vocabulary, [&](int64_t row, int) {
      scores_.best[size_t(row)] = model_->level.largest(logits_.data() + row * vocabulary, s.target_vocabulary);
    });
    watch.stop(profile_.choice);
  }
  for (Sentence* sentence : rows) {
    sentence->through = true;
    scores_.slots.push_back(sentence->slot);
    scores_.needed.push_back(sentence->furthest);
    for (const std::vector<Aligned>& aligned : sentence->alignments) {
      const auto before = [](const Aligned& a, const Aligned& b) { return a.center < b.center; };
      const Aligned& furthest = *std::max_element(aligned.begin(), aligned.end(), before);
      scores_.positions.push_back(furthest.center);
      scores_.widths.push_back(furthest.width);
    }
  }
  ++profile_.steps;
  profile_.rows += count;
}

// Tokens that are given, each attending to the whole source that has arrived.
void Batch::forced_pass(Team& team, const std::vector<Place>& places) {
  const int64_t stride = model_->stride, rows = int64_t(places.size());
  for (size_t index = 0; index < model_->decoder.size(); ++index) {
    const DecoderLayer& layer = model_->decoder[index];
    attend_self(team, layer.self, &Sentence::own, int64_t(index), places);
    product(team, layer.query, hidden_.data(), stride, rows, query_.data());
    std::vector<Aligned> aligned;
    for (const Place& place : places) aligned.push_back({1, 1, int32_t(place.sentence->arrived), 0, 1, 1});
    std::vector<AttendedSource> attended;
    for (size_t row = 0; row < places.size(); ++row) attended.push_back({places[row].sentence, &aligned[row], 1});
    attend_source(team, int64_t(index), attended);
  }
}

}  // namespace engine
}  // namespace gma

// Waiting by information gain: the first decoder layer decides for all.

#include <algorithm>
#include <cmath>

#include "batch.h"

namespace gma {
namespace engine {
namespace {

constexpr float lowest = -12, highest = 4;  // of the logarithm

double gain_of(const EngineLevel& level, const GainHead& head, int64_t width, const float* asking, const float* heard,
               float* hidden) {
  for (int64_t c = 0; c < width; ++c) hidden[c] = asking[c] + heard[c];
  std::fill(hidden + width, hidden + padded(width), 0.0f);
  level.hyperbolic_tangent(hidden, width, 1);
  const float logarithm = level.dot(hidden, head.output.data(), width) + head.bias;
  // comparisons that keep a NaN
  return std::exp(double(logarithm < lowest ? lowest : logarithm > highest ? highest : logarithm));
}

}  // namespace

// Where a row stops that looks from its position on: at the first source token behind which the rest would not tell
// enough, and not before as many have been heard as are written. One that has looked at all there is wants one more.
// scratch: [stride]
void Batch::scan(Sentence& sentence, const float* asking, float* scratch) {
  Aligned& aligned = sentence.alignments[0][0];
  const int64_t from = std::isnan(aligned.position) ? 0 : int64_t(aligned.position);
  int64_t place = std::max(from, sentence.written + 1);
  while (place <= sentence.arrived && !(gain_of(model_->level, *model_->gain, model_->settings.width, asking,
                                                sentence.heard.row(place - 1), scratch) <= sentence.delta))
    ++place;
  place = std::min({place, sentence.arrived + 1, sentence.source_length()});
  aligned.center = aligned.width = 1;
  aligned.visible = int32_t(place);
  aligned.position = double(place);
}

// Rows that stand in `hidden_`, with their queries in `query_`.
void Batch::align_by_gain(Team& team, const std::vector<Sentence*>& rows) {
  const int64_t stride = model_->stride, count = int64_t(rows.size());
  product(team, model_->gain->asking, hidden_.data(), stride, count, context_.data());
  each_row(team, count, 20 * stride, [&](int64_t row, int) {
    Aligned& aligned = rows[size_t(row)]->alignments[0][0];
    aligned.origin = aligned.position;
    scan(*rows[size_t(row)], context_.data() + row * stride, change_.data() + row * stride);
  });
  for (int64_t row = 0; row < count; ++row) {
    Sentence& sentence = *rows[size_t(row)];
    settle(0, sentence);
    if (sentence.can_go_on()) continue;
    sentence.asking.reserve(stride);
    std::copy_n(context_.data() + row * stride, stride, sentence.asking.data());
  }
}

}  // namespace engine
}  // namespace gma

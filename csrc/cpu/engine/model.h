// A model as the engine holds it: settings, and weights packed once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "level.h"
#include "memory.h"

namespace gma {
namespace engine {

enum class Policy : int { gaussian, wait_k, offline, gain };

struct Settings {
  int64_t width, heads, feed_forward, encoder_layers, decoder_layers;
  int64_t source_vocabulary, target_vocabulary;
  int64_t end_token;  // that ends a source
  bool causal;        // the encoder
  Policy policy;
  PriorKind prior;
  // of the Gaussian policy
  int64_t alignments;  // of a row: 1 if its heads share one, else as many as heads
  bool shares_layers;  // the first layer's alignment serves all
  bool absolute_positions;
  bool reference_convention;
  double width_factor;  // of the position; 0 where the width is predicted
  // of wait-k
  double catch_up;
};

// A tensor of the caller's: its values are contiguous, of float32, and stay where they are while the model lives.
struct Tensor {
  const float* data;
  std::vector<int64_t> sizes;
};
// by the name that it has in the model's state; throws std::invalid_argument if there is none
using Tensors = std::function<Tensor(const std::string& name)>;

struct Linear {
  PackedWeights packed{};
  Array<char> panels;
  Array<float> bias, scales;
  Array<int32_t> corrections;
};

struct Norm {
  Array<float> gain, bias;
  float epsilon = 1e-5f;
};

struct SelfAttention {
  Linear input, output;
  Norm norm;
};

struct FeedForward {
  Linear expand, contract;
  Norm norm;
};

// exp(v tanh(W q / sqrt(d))) for heads of d features: one number, or one for each head
struct Predictor {
  Linear hidden;
  Array<float> output;  // [outputs, width padded]
};

// exp(v tanh(W q + U h) + c), what more source would tell about the next token; of the first decoder layer
struct GainHead {
  Linear asking, heard;
  Array<float> output;  // [width padded]
  float bias;
};

struct EncoderLayer {
  SelfAttention self;
  FeedForward feed_forward;
};

struct DecoderLayer {
  SelfAttention self;
  Linear query, memory, output;
  Norm norm;
  std::optional<Predictor> step, spread;
  FeedForward feed_forward;
};

class Model {
 public:
  // Throws std::invalid_argument for what does not fit.
  Model(const Settings& settings, WeightType weights, const Tensors& tensors);

  const Settings settings;
  const EngineLevel& level;
  const int64_t stride;                              // of rows of the model's width
  const float *source_embedding, *target_embedding;  // the caller's, [vocabulary, width]
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  Linear project;
  std::optional<GainHead> gain;

  int64_t head_size() const { return settings.width / settings.heads; }
  int64_t bytes() const { return bytes_; }
  // multiplications of a row's way through the decoder
  int64_t operations() const { return operations_; }

 private:
  int64_t bytes_ = 0, operations_ = 0;
};

}  // namespace engine
}  // namespace gma

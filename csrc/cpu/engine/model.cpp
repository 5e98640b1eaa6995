#include "model.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

namespace gma {
namespace engine {
namespace {

std::string text(const std::vector<int64_t>& sizes) {
  std::ostringstream out;
  for (size_t i = 0; i < sizes.size(); ++i) out << (i > 0 ? ", " : "[") << sizes[i];
  out << (sizes.empty() ? "[]" : "]");
  return out.str();
}

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

class Packer {
 public:
  Packer(const EngineLevel& level, WeightType type, const Tensors& tensors)
      : level_(level), type_(type), tensors_(tensors) {}

  const float* table(const std::string& name, int64_t rows, int64_t columns) { return find(name, {rows, columns}); }

  Linear linear(const std::string& name, int64_t outputs, int64_t inputs) {
    return pack(find(name + ".weight", {outputs, inputs}), find(name + ".bias", {outputs}), outputs, inputs, type_);
  }

  // some outputs of a layer that has more: `outputs` from `first` on, of `all`
  Linear part(const std::string& name, int64_t all, int64_t first, int64_t outputs, int64_t inputs, WeightType type) {
    return pack(find(name + ".weight", {all, inputs}) + first * inputs, find(name + ".bias", {all}) + first, outputs,
                inputs, type);
  }

  // positions do not bear rounding, and nothing else goes without a bias but the last layer
  Linear exact_linear(const std::string& name, int64_t outputs, int64_t inputs) {
    return pack(find(name + ".weight", {outputs, inputs}), nullptr, outputs, inputs, WeightType::float32);
  }

  Linear projection(const std::string& name, int64_t outputs, int64_t inputs) {
    return pack(find(name + ".weight", {outputs, inputs}), nullptr, outputs, inputs, type_);
  }

  Norm norm(const std::string& name, int64_t columns) {
    Norm norm;
    norm.gain = padded_rows(find(name + ".weight", {columns}), 1, columns);
    norm.bias = padded_rows(find(name + ".bias", {columns}), 1, columns);
    return norm;
  }

  Predictor predictor(const std::string& name, int64_t outputs, int64_t columns) {
    Predictor predictor;
    predictor.hidden = exact_linear(name + ".hidden", columns, columns);
    predictor.output = padded_rows(find(name + ".output.weight", {outputs, columns}), outputs, columns);
    return predictor;
  }

  // nor do gains
  GainHead gain(const std::string& name, int64_t width) {
    GainHead head{part(name + ".query", 2 * width, width, width, width, WeightType::float32),
                  part(name + ".memory", 3 * width, 2 * width, width, width, WeightType::float32),
                  padded_rows(find(name + ".gain.weight", {1, width}), 1, width), 0};
    head.bias = *find(name + ".gain.bias", {1});
    return head;
  }

  int64_t bytes() const { return bytes_; }

 private:
  const float* find(const std::string& name, const std::vector<int64_t>& expected) {
    const Tensor tensor = tensors_(name);
    if (tensor.sizes != expected)
      throw std::invalid_argument(name + " has shape " + text(tensor.sizes) + "; expected " + text(expected));
    return tensor.data;
  }

  Array<float> padded_rows(const float* from, int64_t rows, int64_t columns) {
    Array<float> to(rows * padded(columns));
    to.clear();
    for (int64_t r = 0; from != nullptr && r < rows; ++r)
      std::memcpy(&to[r * padded(columns)], from + r * columns, size_t(columns) * sizeof(float));
    bytes_ += int64_t(to.bytes());
    return to;
  }

  Linear pack(const float* weight, const float* bias, int64_t outputs, int64_t inputs, WeightType type) {
    Linear linear;
    linear.bias = padded_rows(bias, 1, outputs);
    linear.packed = {type, inputs, outputs, nullptr, linear.bias.data(), nullptr, nullptr};
    const int64_t panels = linear.packed.panel_count();
    const bool integer = type == WeightType::int8 && level_.has_integer_products;
    const int64_t depth = integer ? padded(inputs) : inputs;
    const int64_t size = type == WeightType::float32 ? 4 : type == WeightType::bfloat16 ? 2 : 1;
    linear.panels = Array<char>(panels * depth * panel_columns * size);
    linear.panels.clear();
    bytes_ += int64_t(linear.panels.bytes());
    if (type == WeightType::int8) {
      linear.scales = Array<float>(padded(outputs));
      linear.corrections = Array<int32_t>(padded(outputs));
      linear.scales.clear();
      linear.corrections.clear();
      bytes_ += int64_t(linear.scales.bytes() + linear.corrections.bytes());
    }
    for (int64_t o = 0; o < outputs; ++o) {
      const float* row = weight + o * inputs;
      const int64_t first = o / panel_columns * depth * panel_columns, column = o % panel_columns;
      if (type == WeightType::float32) {
        float* to = reinterpret_cast<float*>(linear.panels.data()) + first + column;
        for (int64_t k = 0; k < inputs; ++k) to[k * panel_columns] = row[k];
      } else if (type == WeightType::bfloat16) {
        uint16_t* to = reinterpret_cast<uint16_t*>(linear.panels.data()) + first + column;
        for (int64_t k = 0; k < inputs; ++k) to[k * panel_columns] = to_bfloat16(row[k]);
      } else {
        pack_bytes(row, inputs, integer, reinterpret_cast<int8_t*>(linear.panels.data()) + first, column,
                   linear.scales[o], linear.corrections[o]);
      }
    }
    linear.packed.panels = linear.panels.data();
    linear.packed.scales = type == WeightType::int8 ? linear.scales.data() : nullptr;
    linear.packed.corrections = integer ? linear.corrections.data() : nullptr;
    return linear;
  }

  // one output: the largest of its weights becomes 127
  static void pack_bytes(const float* row, int64_t inputs, bool in_fours, int8_t* panel, int64_t column, float& scale,
                         int32_t& correction) {
    float largest = 0;
    for (int64_t k = 0; k < inputs; ++k) largest = std::fmax(largest, std::fabs(row[k]));
    scale = largest / 127;
    int32_t sum = 0;
    for (int64_t k = 0; k < inputs; ++k) {
      const float level = largest > 0 ? std::nearbyint(row[k] / scale) : 0.0f;
      // what is not finite becomes something
      const int8_t value = int8_t(level >= -127 && level <= 127 ? level : 0);
      sum += value;
      panel[in_fours ? k / 4 * 4 * panel_columns + column * 4 + k % 4 : k * panel_columns + column] = value;
    }
    correction = 128 * sum;
  }

  const EngineLevel& level_;
  const WeightType type_;
  const Tensors& tensors_;
  int64_t bytes_ = 0;
};

void check(const Settings& s) {
  const auto require = [](bool fine, const char* what) {
    if (!fine) throw std::invalid_argument(what);
  };
  require(s.width >= 1 && s.width <= 1 << 16, "width is out of range; expected 1 to 65536");
  require(s.heads >= 1 && s.width % s.heads == 0, "heads do not divide the width");
  require(s.width / s.heads <= max_head_size, "a head has too many columns; expected 256 at most");
  require(s.feed_forward >= 1 && s.feed_forward <= 1 << 18, "feed_forward is out of range; expected 1 to 262144");
  require(s.encoder_layers >= 1 && s.decoder_layers >= 1, "there are no layers; expected at least one");
  require(s.source_vocabulary >= 1 && s.target_vocabulary >= 1, "a vocabulary is empty");
  require(s.alignments == 1 || s.alignments == s.heads, "alignments is neither 1 nor the number of heads");
}

}  // namespace

Model::Model(const Settings& given, WeightType weights, const Tensors& tensors)
    : settings((check(given), given)), level(engine_level()), stride(padded(given.width)) {
  const Settings& s = settings;
  Packer packer(level, weights, tensors);
  const auto self_attention = [&](const std::string& name) {
    return SelfAttention{packer.linear(name + ".self_attention.input", 3 * s.width, s.width),
                         packer.linear(name + ".self_attention.output", s.width, s.width),
                         packer.norm(name + ".self_attention_norm", s.width)};
  };
  const auto feed_forward = [&](const std::string& name) {
    return FeedForward{packer.linear(name + ".feed_forward.expand", s.feed_forward, s.width),
                       packer.linear(name + ".feed_forward.contract", s.width, s.feed_forward),
                       packer.norm(name + ".feed_forward.norm", s.width)};
  };
  source_embedding = packer.table("encoder.embed.tokens.weight", s.source_vocabulary, s.width);
  target_embedding = packer.table("decoder.embed.tokens.weight", s.target_vocabulary, s.width);
  for (int64_t i = 0; i < s.encoder_layers; ++i) {
    const std::string name = "encoder.layers." + std::to_string(i);
    encoder.push_back({self_attention(name), feed_forward(name)});
  }
  for (int64_t i = 0; i < s.decoder_layers; ++i) {
    const std::string name = "decoder.layers." + std::to_string(i), cross = name + ".cross_attention";
    // behind attention's own projections stand those of the head that decides
    const bool decides = s.policy == Policy::gain && i == 0;
    DecoderLayer layer{self_attention(name),
                       packer.part(cross + ".query", (decides ? 2 : 1) * s.width, 0, s.width, s.width, weights),
                       packer.part(cross + ".memory", (decides ? 3 : 2) * s.width, 0, 2 * s.width, s.width, weights),
                       packer.linear(cross + ".output", s.width, s.width),
                       packer.norm(name + ".cross_attention_norm", s.width),
                       std::nullopt,
                       std::nullopt,
                       feed_forward(name)};
    if (s.policy == Policy::gaussian && (i == 0 || !s.shares_layers)) {
      layer.step = packer.predictor(cross + ".aligner.step", s.alignments, s.width);
      if (s.width_factor == 0) layer.spread = packer.predictor(cross + ".aligner.width", s.alignments, s.width);
    }
    if (decides) gain = packer.gain(cross, s.width);
    decoder.push_back(std::move(layer));
  }
  project = packer.projection("project", s.target_vocabulary, s.width);
  bytes_ = packer.bytes();
  operations_ =
      s.decoder_layers * (7 * s.width * s.width + 2 * s.width * s.feed_forward) + s.width * s.target_vocabulary;
}

}  // namespace engine
}  // namespace gma

// Random lives of a batch: sentences open, hear, step, fork, change their latency, go back and close, in random models
// at every SIMD level and in every kind of weights. What a sentence gets in company, on 3 threads, must be what it gets
// alone, bit for bit; wrong calls must be refused and change nothing. Run as: fuzz_engine [cases] [seed]
// `make sanitize` builds and runs it under AddressSanitizer and UndefinedBehaviorSanitizer.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>

#include "../../../csrc/cpu/engine/batch.h"

namespace {

using namespace gma::engine;

std::mt19937_64 random_engine;

int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_engine); }
bool chance(double p) { return std::bernoulli_distribution(p)(random_engine); }

void fail(const char* what) {
  std::printf("FAILED: %s\n", what);
  std::exit(1);
}

constexpr int alone = 1, together = 3;

Settings random_settings() {
  Settings s{};
  s.heads = pick(1, 4);
  s.width = s.heads * pick(1, chance(0.2) ? 70 : 20) * 2;
  s.feed_forward = pick(1, 150);
  s.encoder_layers = pick(1, 2);
  s.decoder_layers = pick(1, 3);
  s.source_vocabulary = pick(4, 40);
  s.target_vocabulary = pick(4, 200);
  s.end_token = 2;
  s.causal = chance(0.8);
  s.policy = static_cast<Policy>(pick(0, 3));
  s.prior = static_cast<gma::PriorKind>(pick(0, 3));
  s.alignments = s.policy == Policy::gaussian && chance(0.5) ? s.heads : 1;
  s.shares_layers = s.policy == Policy::gain || (s.policy == Policy::gaussian && chance(0.3));
  s.absolute_positions = chance(0.2);
  s.reference_convention = chance(0.3);
  s.width_factor = chance(0.3) ? 0 : 0.5;
  s.catch_up = chance(0.5) ? 0 : 0.3;
  return s;
}

// of whatever name and shape is asked for; rows end where their allocation ends
struct Weights {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::vector<int64_t>> shapes;

  explicit Weights(const Settings& s) {
    const int64_t e = s.width, f = s.feed_forward;
    const auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs) {
      add(name + ".weight", {outputs, inputs});
      add(name + ".bias", {outputs});
    };
    const auto norm = [&](const std::string& name) {
      add(name + ".weight", {e});
      add(name + ".bias", {e});
    };
    const auto layer = [&](const std::string& name) {
      linear(name + ".self_attention.input", 3 * e, e);
      linear(name + ".self_attention.output", e, e);
      norm(name + ".self_attention_norm");
      linear(name + ".feed_forward.expand", f, e);
      linear(name + ".feed_forward.contract", e, f);
      norm(name + ".feed_forward.norm");
    };
    add("encoder.embed.tokens.weight", {s.source_vocabulary, e});
    add("decoder.embed.tokens.weight", {s.target_vocabulary, e});
    add("project.weight", {s.target_vocabulary, e});
    for (int64_t i = 0; i < s.encoder_layers; ++i) layer("encoder.layers." + std::to_string(i));
    for (int64_t i = 0; i < s.decoder_layers; ++i) {
      const std::string name = "decoder.layers." + std::to_string(i), cross = name + ".cross_attention";
      layer(name);
      const bool decides = s.policy == Policy::gain && i == 0;
      linear(cross + ".query", (decides ? 2 : 1) * e, e);
      linear(cross + ".memory", (decides ? 3 : 2) * e, e);
      add(cross + ".gain.weight", {1, e});
      add(cross + ".gain.bias", {1});
      linear(cross + ".output", e, e);
      norm(name + ".cross_attention_norm");
      for (const char* part : {".aligner.step", ".aligner.width"}) {
        add(cross + part + ".hidden.weight", {e, e});
        add(cross + part + ".output.weight", {s.alignments, e});
      }
    }
  }

  void add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::normal_distribution<float> normal(0, 1.5f / std::sqrt(float(shape.back())));
    std::vector<float>& values = tensors[name];
    for (int64_t i = 0; i < count; ++i) values.push_back(normal(random_engine));
    values.shrink_to_fit();
    shapes[name] = shape;
  }

  Tensors find() const {
    return [this](const std::string& name) -> Tensor {
      if (tensors.count(name) == 0) throw std::invalid_argument("the tensor " + name + " is missing");
      return {tensors.at(name).data(), shapes.at(name)};
    };
  }
};

template <class Call>
void must_refuse(const Call& call, const char* what) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return;
  }
  fail(what);
}

// What has happened to one sentence, so that it can happen again.
struct Life {
  double delta;
  std::vector<int64_t> source, tokens;
  std::vector<std::vector<float>> logits;
  size_t pushed = 0;
  bool repeatable = true;  // nothing happened that the repetition leaves out
};

double random_delta(const Settings& s) {
  if (s.policy == Policy::wait_k) return double(pick(1, 6));
  if (s.policy == Policy::gain) return double(pick(0, 6)) / 3;
  return chance(0.1) ? INFINITY : double(pick(-4, 12)) / 4;
}

void check_alone(const std::shared_ptr<const Model>& model, const Life& life) {
  Batch batch(model);
  const int64_t slot = batch.open(life.delta, 1);
  batch.push({{slot, life.source}}, false, alone);
  for (size_t step = 0; step < life.logits.size(); ++step) {
    if (!batch.advance({slot}, alone) || batch.scores().slots.size() != 1) fail("a sentence that is repeated waits");
    const size_t vocabulary = life.logits[step].size();
    if (std::memcmp(batch.logits(0), life.logits[step].data(), vocabulary * sizeof(float)) != 0)
      fail("a sentence alone gets other bits than in company");
    batch.write({slot}, {life.tokens[step]}, 2);
  }
}

void live(const std::shared_ptr<const Model>& model) {
  const Settings& s = model->settings;
  Batch batch(model);
  std::map<int64_t, Life> lives;
  const auto begin = [&] {
    Life life{};
    life.delta = random_delta(s);
    for (int64_t i = pick(0, 20); i > 0; --i) life.source.push_back(pick(3, s.source_vocabulary - 1));
    life.source.push_back(2);
    lives[batch.open(life.delta, 1)] = life;
  };
  begin();
  for (int act = 0; act < 60; ++act) {
    const int threads = chance(0.5) ? together : alone;
    if (lives.empty() || (chance(0.15) && lives.size() < 9)) begin();
    auto chosen = lives.begin();
    std::advance(chosen, pick(0, int64_t(lives.size()) - 1));
    const int64_t slot = chosen->first;
    Life& life = chosen->second;
    const double draw = double(pick(0, 99)) / 100;
    if (draw < 0.05) {
      batch.close(slot);
      lives.erase(slot);
    } else if (draw < 0.1 && life.pushed == life.source.size()) {
      Life copy = life;
      copy.repeatable = false;
      lives[batch.fork(slot)] = copy;
    } else if (draw < 0.13) {
      batch.change_latency(slot, random_delta(s));
      life.repeatable = false;
    } else if (draw < 0.16 && s.causal && batch.sentence(slot).arrived > 0 && s.policy == Policy::offline) {
      const int64_t back = pick(0, batch.sentence(slot).arrived);
      batch.take_back(slot, back);
      life.pushed = size_t(back);
      life.repeatable = false;
      batch.force({{slot, {1, pick(3, s.target_vocabulary - 1), 3}}}, threads);
    } else if (draw < 0.5) {
      Batch::Sources sources;
      for (auto& [other, its] : lives) {
        const size_t count = std::min<size_t>(size_t(pick(0, 4)), its.source.size() - its.pushed);
        if (count == 0) continue;
        sources[other] = {its.source.begin() + int64_t(its.pushed), its.source.begin() + int64_t(its.pushed + count)};
        its.pushed += count;
      }
      batch.push(sources, chance(0.3), threads);
    } else if (draw < 0.55) {
      must_refuse([&] { batch.push({{99, {3}}}, false, threads); }, "a slot that is not open");
      must_refuse([&] { batch.push({{slot, {s.source_vocabulary}}}, false, threads); }, "a token past the vocabulary");
      must_refuse([&] { batch.write({slot}, {-1}, 2); }, "a negative token");
      must_refuse([&] { batch.take_back(slot, batch.sentence(slot).arrived + 1); }, "going back forwards");
      must_refuse([&] { batch.copy({{slot, 99}}); }, "a past that is not there");
    } else {
      if (!batch.advance(batch.slots(), threads)) continue;
      const Scores scores = batch.scores();
      for (size_t row = 0; row < scores.slots.size(); ++row) {
        Life& its = lives.at(scores.slots[row]);
        const float* logits = batch.logits(int64_t(row));
        its.logits.emplace_back(logits, logits + s.target_vocabulary);
        its.tokens.push_back(chance(0.03) ? 2 : pick(3, s.target_vocabulary - 1));
      }
      std::vector<int64_t> tokens;
      for (const int64_t other : scores.slots) tokens.push_back(lives.at(other).tokens.back());
      batch.write(scores.slots, tokens, 2);
    }
  }
  for (const auto& [slot, life] : lives)
    if (life.repeatable) check_alone(model, life);
}

}  // namespace

int main(int count, char** arguments) {
  const int cases = count > 1 ? std::atoi(arguments[1]) : 100;
  random_engine.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  for (int i = 0; i < cases; ++i) {
    const std::vector<std::string> levels = gma::simd_levels();
    gma::use_simd(levels[size_t(i) % levels.size()]);
    const Settings settings = random_settings();
    Weights weights(settings);
    live(std::make_shared<const Model>(settings, static_cast<WeightType>(i / 3 % 3), weights.find()));
    if (chance(0.2)) {
      weights.shapes.begin()->second.push_back(1);
      must_refuse([&] { Model(settings, WeightType::int8, weights.find()); }, "a tensor of another shape");
    }
  }
  std::printf("%d random lives: no error\n", cases);
}

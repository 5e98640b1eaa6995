// The decoding engine for Python: weights that stay where they are, everything else as plain numbers. A model and a
// batch are numbers for Python, too: addresses, which it gives back to be freed.

#include <cmath>
#include <memory>
#include <mutex>
#include <sstream>

#include "cpu/engine/batch.h"
#include "exports.h"
#include "threads.h"

namespace {

using namespace gma::engine;
using gma::exports::guarded;
using gma::exports::guarded_text;
using Slots = std::vector<int64_t>;
using Packed = std::shared_ptr<const Model>;

// Settings by their names, all of them numbers.
struct Given {
  const char* const* names;
  const double* values;
  int64_t count;

  double number(const std::string& name) const {
    for (int64_t i = 0; i < count; ++i)
      if (name == names[i]) return values[i];
    throw std::invalid_argument("the setting " + name + " is missing");
  }
  int64_t integer(const std::string& name) const {
    const double value = number(name);
    if (!(std::fabs(value) < 0x1p53) || value != std::floor(value))
      throw std::invalid_argument("the setting " + name + " is no integer");
    return static_cast<int64_t>(value);
  }
};

Settings read_settings(const Given& given) {
  Settings s{};
  s.width = given.integer("width");
  s.heads = given.integer("heads");
  s.feed_forward = given.integer("feed_forward");
  s.encoder_layers = given.integer("encoder_layers");
  s.decoder_layers = given.integer("decoder_layers");
  s.source_vocabulary = given.integer("source_vocabulary");
  s.target_vocabulary = given.integer("target_vocabulary");
  s.end_token = given.integer("end_token");
  s.causal = given.integer("causal") != 0;
  const int64_t policy = given.integer("policy"), prior = given.integer("prior");
  if (policy < 0 || policy > 3) throw std::invalid_argument("policy is out of range; expected 0 to 3");
  if (prior < 0 || prior > 3) throw std::invalid_argument("prior is out of range; expected 0 to 3");
  s.policy = static_cast<Policy>(policy);
  s.prior = static_cast<gma::PriorKind>(prior);
  s.alignments = given.integer("alignments");
  s.shares_layers = given.integer("shares_layers") != 0;
  s.absolute_positions = given.integer("absolute_positions") != 0;
  s.reference_convention = given.integer("reference_convention") != 0;
  s.width_factor = given.number("width_factor");
  s.catch_up = given.number("catch_up");
  return s;
}

WeightType weight_type(const std::string& name) {
  if (name == "float32") return WeightType::float32;
  if (name == "bfloat16") return WeightType::bfloat16;
  if (name == "int8") return WeightType::int8;
  throw std::invalid_argument("weights are '" + name + "'; expected 'float32', 'bfloat16' or 'int8'");
}

// Tokens of slots, those of the first slot first.
Batch::Sources read_sources(const int64_t* slots, const int64_t* counts, int64_t count, const int64_t* tokens) {
  Batch::Sources sources;
  for (int64_t i = 0; i < count; tokens += counts[i++]) sources[slots[i]].assign(tokens, tokens + counts[i]);
  return sources;
}

// What a batch does is done by one thread at a time; Python's others go on meanwhile.
template <class Body>
int64_t alone(Batch* batch, const Body& body) {
  return guarded([&] {
    const std::lock_guard<std::mutex> lock(batch->mutex());
    return body();
  });
}

int threads() { return gma::torch_threads().threads; }

}  // namespace

// the SIMD level's, with what else the engine has on this CPU
GMA_EXPORT const char* gma_decoding_level() {
  return guarded_text([] { return engine_level().name; });
}

// sizes: those of all tensors, one after the other, `dimensions` of each. The tensors stay as they are while the model
// lives.
GMA_EXPORT int64_t gma_model_pack(const char* const* setting_names, const double* settings, int64_t setting_count,
                                  const char* const* tensor_names, const float* const* tensors,
                                  const int64_t* dimensions, const int64_t* sizes, int64_t tensor_count,
                                  const char* weights) {
  return guarded([&] {
    const Tensors find = [&](const std::string& name) -> Tensor {
      const int64_t* from = sizes;
      for (int64_t i = 0; i < tensor_count; from += dimensions[i++])
        if (name == tensor_names[i]) return {tensors[i], {from, from + dimensions[i]}};
      throw std::invalid_argument("the tensor " + name + " is missing");
    };
    const Settings read = read_settings({setting_names, settings, setting_count});
    return new Packed(std::make_shared<const Model>(read, weight_type(weights), find));
  });
}
GMA_EXPORT void gma_model_free(Packed* model) { delete model; }
GMA_EXPORT int64_t gma_model_bytes(const Packed* model) { return (*model)->bytes(); }
GMA_EXPORT const char* gma_model_simd_level(const Packed* model) {
  return guarded_text([&] { return (*model)->level.name; });
}

GMA_EXPORT int64_t gma_batch_make(const Packed* model) {
  return guarded([&] { return new Batch(*model); });
}
GMA_EXPORT void gma_batch_free(Batch* batch) { delete batch; }
GMA_EXPORT int64_t gma_batch_open(Batch* batch, double delta, int64_t token) {
  return alone(batch, [&] { return batch->open(delta, token); });
}
GMA_EXPORT int64_t gma_batch_change_latency(Batch* batch, int64_t slot, double delta) {
  return alone(batch, [&] { batch->change_latency(slot, delta); });
}
GMA_EXPORT int64_t gma_batch_close(Batch* batch, int64_t slot) {
  return alone(batch, [&] { batch->close(slot); });
}
GMA_EXPORT int64_t gma_batch_fork(Batch* batch, int64_t slot) {
  return alone(batch, [&] { return batch->fork(slot); });
}
GMA_EXPORT int64_t gma_batch_copy(Batch* batch, const int64_t* slots, const int64_t* origins, int64_t count) {
  return alone(batch, [&] {
    std::map<int64_t, int64_t> found;
    for (int64_t i = 0; i < count; ++i) found[slots[i]] = origins[i];
    batch->copy(found);
  });
}

// How many states there are, and where: this thread's, until its next push.
GMA_EXPORT int64_t gma_batch_push(Batch* batch, const int64_t* slots, const int64_t* counts, int64_t count,
                                  const int64_t* tokens, int64_t wanted, const float** states) {
  static thread_local std::vector<float> kept;
  return alone(batch, [&] {
    kept = batch->push(read_sources(slots, counts, count, tokens), wanted != 0, threads());
    *states = kept.data();
    return static_cast<int64_t>(kept.size()) / batch->model().settings.width;
  });
}

// How many of `count` slots came through, or -1 if none could go on. integers: [3, count], slots, best tokens and
// source tokens needed; reals: [2, count, layers], positions and widths.
GMA_EXPORT int64_t gma_batch_advance(Batch* batch, const int64_t* slots, int64_t count, int64_t* integers,
                                     double* reals) {
  return alone(batch, [&]() -> int64_t {
    if (!batch->advance(Slots(slots, slots + count), threads())) return -1;
    const Scores& scores = batch->scores();
    std::copy(scores.slots.begin(), scores.slots.end(), integers);
    std::copy(scores.best.begin(), scores.best.end(), integers + count);
    std::copy(scores.needed.begin(), scores.needed.end(), integers + 2 * count);
    std::copy(scores.positions.begin(), scores.positions.end(), reals);
    std::copy(scores.widths.begin(), scores.widths.end(), reals + count * batch->model().settings.decoder_layers);
    return static_cast<int64_t>(scores.slots.size());
  });
}

// logits: [rows, target vocabulary], of the latest step
GMA_EXPORT int64_t gma_batch_logits(Batch* batch, float* logits, int64_t rows) {
  return alone(batch, [&] {
    if (rows != static_cast<int64_t>(batch->scores().slots.size()))
      throw std::invalid_argument("logits are those of the latest step, and this is another's");
    const int64_t columns = batch->model().settings.target_vocabulary;
    for (int64_t row = 0; row < rows; ++row) std::copy_n(batch->logits(row), columns, logits + row * columns);
  });
}
GMA_EXPORT int64_t gma_batch_write(Batch* batch, const int64_t* slots, int64_t slot_count, const int64_t* tokens,
                                   int64_t token_count, int64_t end_token) {
  return alone(batch,
               [&] { batch->write(Slots(slots, slots + slot_count), Slots(tokens, tokens + token_count), end_token); });
}
GMA_EXPORT int64_t gma_batch_take_back(Batch* batch, int64_t slot, int64_t arrived) {
  return alone(batch, [&] { batch->take_back(slot, arrived); });
}
GMA_EXPORT int64_t gma_batch_force(Batch* batch, const int64_t* slots, const int64_t* counts, int64_t count,
                                   const int64_t* tokens) {
  return alone(batch, [&] { batch->force(read_sources(slots, counts, count, tokens), threads()); });
}

// How many slots there are; the first `room` of them.
GMA_EXPORT int64_t gma_batch_slots(Batch* batch, int64_t* slots, int64_t room) {
  return alone(batch, [&] {
    const Slots open = batch->slots();
    std::copy_n(open.begin(), std::min<size_t>(open.size(), size_t(room)), slots);
    return open.size();
  });
}
GMA_EXPORT int64_t gma_batch_needed(Batch* batch, int64_t slot) {
  return alone(batch, [&] { return batch->sentence(slot).needed; });
}
GMA_EXPORT int64_t gma_batch_arrived(Batch* batch, int64_t slot) {
  return alone(batch, [&] { return batch->sentence(slot).arrived; });
}
GMA_EXPORT int64_t gma_batch_bytes(Batch* batch) {
  return alone(batch, [&] { return batch->bytes(); });
}

// JSON: seconds by part, steps and rows since the batch was made
GMA_EXPORT const char* gma_batch_profile(Batch* batch) {
  return guarded_text([&] {
    const std::lock_guard<std::mutex> lock(batch->mutex());
    const Profile& p = batch->profile();
    std::ostringstream text;
    text << "{\"encoder\": " << p.encoder << ", \"products\": " << p.products << ", \"attention\": " << p.attention
         << ", \"alignment\": " << p.alignment << ", \"norms\": " << p.norms << ", \"projection\": " << p.projection
         << ", \"choice\": " << p.choice << ", \"steps\": " << p.steps << ", \"rows\": " << p.rows << "}";
    return text.str();
  });
}

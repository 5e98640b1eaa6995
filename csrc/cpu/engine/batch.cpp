#include "batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace gma {
namespace engine {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check_tokens(int64_t slot, const std::vector<int64_t>& tokens, int64_t vocabulary) {
  for (const int64_t token : tokens)
    if (token < 0 || token >= vocabulary)
      refuse("slot " + std::to_string(slot) + " was given the token " + std::to_string(token) +
             "; expected 0 or more and below " + std::to_string(vocabulary));
}

}  // namespace

Sentence::Sentence(const Model& model, double given_delta, int64_t first_token)
    : delta(given_delta), token(first_token), heard(model.settings.width) {
  const Settings& s = model.settings;
  for (int64_t i = 0; i < s.encoder_layers; ++i) encoder.emplace_back(2 * s.width);
  for (int64_t i = 0; i < s.decoder_layers; ++i) {
    own.emplace_back(2 * s.width);
    source.emplace_back(2 * s.width);
  }
  alignments.assign(
      size_t(s.decoder_layers),
      std::vector<Aligned>(size_t(s.alignments), {1.0f, 1.0f, 0, 0, __builtin_nan(""), __builtin_nan("")}));
}

Batch::Batch(std::shared_ptr<const Model> model) : model_(std::move(model)) {}

Sentence& Batch::find(int64_t slot) {
  if (slot < 0 || size_t(slot) >= sentences_.size() || sentences_[size_t(slot)] == nullptr)
    refuse("slot " + std::to_string(slot) + " is not open");
  return *sentences_[size_t(slot)];
}

const Sentence& Batch::sentence(int64_t slot) const { return const_cast<Batch*>(this)->find(slot); }

std::vector<int64_t> Batch::slots() const {
  std::vector<int64_t> open;
  for (size_t slot = 0; slot < sentences_.size(); ++slot)
    if (sentences_[slot] != nullptr) open.push_back(int64_t(slot));
  return open;
}

int64_t Batch::open(double delta, int64_t first_token) {
  check_tokens(0, {first_token}, model_->settings.target_vocabulary);
  size_t slot = 0;
  while (slot < sentences_.size() && sentences_[slot] != nullptr) ++slot;
  if (slot == sentences_.size()) sentences_.emplace_back();
  sentences_[slot] = std::make_unique<Sentence>(*model_, delta, first_token);
  sentences_[slot]->slot = int64_t(slot);
  return int64_t(slot);
}

void Batch::change_latency(int64_t slot, double delta) {
  Sentence& sentence = find(slot);
  sentence.delta = delta;
  if (sentence.layer == nowhere) return;
  for (int64_t i = 0; i <= sentence.layer; ++i)
    for (Aligned& a : sentence.alignments[size_t(i)]) a.position = a.origin;
  sentence.layer = nowhere;
  sentence.through = false;
  sentence.needed = sentence.furthest = 0;
}

void Batch::close(int64_t slot) {
  find(slot);
  sentences_[size_t(slot)].reset();
  while (!sentences_.empty() && sentences_.back() == nullptr) sentences_.pop_back();
  if (!sentences_.empty()) return;
  // with the last sentence goes what a large batch has left behind
  for (Array<float>* buffer : {&hidden_, &query_, &context_, &change_, &gathered_hidden_, &gathered_query_, &wide_,
                               &logits_, &scales_, &attention_})
    Array<float>().swap(*buffer);
  Array<uint8_t>().swap(bytes_);
}

int64_t Batch::fork(int64_t slot) {
  find(slot);
  const int64_t fork = open(0, 0);
  const Sentence& from = find(slot);
  Sentence& to = find(fork);
  to.delta = from.delta;
  to.arrived = from.arrived;
  to.written = from.written;
  to.ended = from.ended;
  to.through = from.through;
  to.token = from.token;
  to.layer = from.layer;
  to.needed = from.needed;
  to.furthest = from.furthest;
  to.unread = from.unread;
  for (size_t i = 0; i < from.encoder.size(); ++i) to.encoder[i].copy(from.encoder[i], from.arrived);
  for (size_t i = 0; i < from.source.size(); ++i) to.source[i].copy(from.source[i], from.arrived);
  to.heard.copy(from.heard, from.heard.data() == nullptr ? 0 : from.arrived);
  if (from.layer != nowhere && !from.through) {
    to.hidden.reserve(model_->stride);
    to.query.reserve(model_->stride);
    std::copy_n(from.hidden.data(), model_->stride, to.hidden.data());
    std::copy_n(from.query.data(), model_->stride, to.query.data());
    if (from.asking.size() > 0) {
      to.asking.reserve(model_->stride);
      std::copy_n(from.asking.data(), model_->stride, to.asking.data());
    }
  }
  copy({{fork, slot}});
  return fork;
}

void Batch::copy(const std::map<int64_t, int64_t>& origins) {
  struct Past {
    std::vector<GrowingRows> own;
    std::vector<std::vector<Aligned>> alignments;
  };
  // all are read before any is written: two may change places
  std::vector<Past> pasts;
  for (const auto& [target, source] : origins) {
    find(target);
    const Sentence& from = find(source);
    // a step that waits between two layers has left its own position behind already
    const int64_t held = from.written + (from.layer != nowhere);
    Past past;
    for (const GrowingRows& rows : from.own) {
      past.own.emplace_back(rows.width());
      past.own.back().copy(rows, held);
    }
    past.alignments = from.alignments;
    pasts.push_back(std::move(past));
  }
  auto past = pasts.begin();
  for (const auto& [target, source] : origins) {
    find(target).own = std::move(past->own);
    find(target).alignments = std::move(past->alignments);
    ++past;
  }
}

Batch::Sources Batch::complete_sources(const Sources& tokens) {
  Sources complete;
  for (const auto& [slot, given] : tokens) {
    std::vector<int64_t>& unread = find(slot).unread;
    unread.insert(unread.end(), given.begin(), given.end());
    if (!unread.empty() && unread.back() == model_->settings.end_token) complete[slot] = std::move(unread);
  }
  return complete;
}

std::vector<float> Batch::push(const Sources& given, bool wanted, int threads) {
  const Settings& s = model_->settings;
  for (const auto& [slot, tokens] : given) {
    if (find(slot).ended)
      refuse("slot " + std::to_string(slot) + " was given " + std::to_string(tokens.size()) +
             " tokens after the end of its source");
    check_tokens(slot, tokens, s.source_vocabulary);
  }
  const Sources sources = s.causal ? given : complete_sources(given);
  std::vector<Place> places;
  std::vector<int64_t> tokens;
  for (const auto& [slot, added] : sources) {
    Sentence& sentence = find(slot);
    const int64_t length = sentence.arrived + int64_t(added.size());
    for (GrowingRows& rows : sentence.encoder) rows.reserve(sentence.arrived, length);
    for (GrowingRows& rows : sentence.source) rows.reserve(sentence.arrived, length);
    if (model_->gain) sentence.heard.reserve(sentence.arrived, length);
    for (size_t i = 0; i < added.size(); ++i) {
      const int64_t position = sentence.arrived + int64_t(i);
      places.push_back({&sentence, position, s.causal ? position + 1 : length});
      tokens.push_back(added[i]);
    }
  }
  if (places.empty()) return {};
  const double operations =
      double(places.size()) * double(s.encoder_layers * s.width) * double(4 * s.width + 2 * s.feed_forward);
  std::vector<float> states;
  Team::run(operations < 1e6 ? 1 : threads, [&](Team& team) {
    embed(team, model_->source_embedding, tokens, places);
    encode(team, places);
    if (!wanted) return;
    states.resize(places.size() * size_t(s.width));
    for (size_t row = 0; row < places.size(); ++row)
      std::copy_n(hidden_.data() + int64_t(row) * model_->stride, s.width, &states[row * size_t(s.width)]);
  });
  for (const auto& [slot, added] : sources) {
    if (added.empty()) continue;
    Sentence& sentence = find(slot);
    sentence.arrived += int64_t(added.size());
    sentence.ended = added.back() == s.end_token;
  }
  return states;
}

bool Batch::advance(const std::vector<int64_t>& slots, int threads) {
  std::vector<Sentence*> going;
  for (const int64_t slot : slots)
    if (find(slot).can_go_on()) going.push_back(&find(slot));
  const auto before = [](const Sentence* a, const Sentence* b) { return a->slot < b->slot; };
  std::sort(going.begin(), going.end(), before);
  going.erase(std::unique(going.begin(), going.end()), going.end());
  scores_.slots.clear();
  scores_.best.clear();
  scores_.needed.clear();
  scores_.positions.clear();
  scores_.widths.clear();
  if (going.empty()) return false;
  Team::run(double(going.size()) * double(model_->operations()) < 1e6 ? 1 : threads,
            [&](Team& team) { step(team, going); });
  return true;
}

void Batch::write(const std::vector<int64_t>& slots, const std::vector<int64_t>& tokens, int64_t end_token) {
  if (slots.size() != tokens.size())
    refuse("there are " + std::to_string(slots.size()) + " slots and " + std::to_string(tokens.size()) + " tokens");
  for (size_t i = 0; i < slots.size(); ++i) {
    find(slots[i]);
    check_tokens(slots[i], {tokens[i]}, model_->settings.target_vocabulary);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    Sentence& sentence = find(slots[i]);
    ++sentence.written;
    sentence.token = tokens[i] == end_token ? no_token : tokens[i];
    sentence.layer = nowhere;
    sentence.through = false;
    sentence.needed = sentence.furthest = 0;
  }
}

void Batch::take_back(int64_t slot, int64_t arrived) {
  Sentence& sentence = find(slot);
  if (arrived < 0 || arrived > sentence.arrived || !model_->settings.causal)
    refuse("slot " + std::to_string(slot) + " cannot go back to " + std::to_string(arrived) + " of " +
           std::to_string(sentence.arrived) + " source tokens");
  sentence.arrived = arrived;
  sentence.ended = false;
}

void Batch::force(const Sources& given, int threads) {
  std::vector<Place> places;
  std::vector<int64_t> inputs;
  for (const auto& [slot, tokens] : given) {
    find(slot);
    if (tokens.empty())
      refuse("slot " + std::to_string(slot) + " was given no tokens; expected the first one at least");
    check_tokens(slot, tokens, model_->settings.target_vocabulary);
  }
  if (model_->settings.policy != Policy::offline) refuse("only a model without a policy can go on from given tokens");
  for (const auto& [slot, tokens] : given) {
    Sentence& sentence = find(slot);
    for (GrowingRows& rows : sentence.own) rows.reserve(0, int64_t(tokens.size()));
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      places.push_back({&sentence, int64_t(i), int64_t(i) + 1});
      inputs.push_back(tokens[i]);
    }
    sentence.written = int64_t(tokens.size()) - 1;
    sentence.token = tokens.back();
    sentence.layer = nowhere;
    sentence.through = false;
    sentence.needed = sentence.furthest = 0;
  }
  if (places.empty()) return;
  Team::run(threads, [&](Team& team) {
    embed(team, model_->target_embedding, inputs, places);
    forced_pass(team, places);
  });
}

int64_t Batch::bytes() const {
  int64_t total = 0;
  for (const auto& sentence : sentences_) {
    if (sentence == nullptr) continue;
    for (const auto* caches : {&sentence->encoder, &sentence->own, &sentence->source})
      for (const GrowingRows& rows : *caches) total += rows.bytes();
    total += sentence->heard.bytes();
  }
  return total;
}

}  // namespace engine
}  // namespace gma

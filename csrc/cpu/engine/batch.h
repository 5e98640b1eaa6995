// Sentences that are being translated, and the steps that take many of them on together.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "model.h"
#include "team.h"

namespace gma {
namespace engine {

constexpr int64_t unknown_length = int64_t(1) << 30;  // of a source that has not ended
constexpr int64_t no_token = -1;
constexpr int64_t nowhere = -1;
// multiplications below which other threads would come too late
constexpr int64_t worth_sharing = 30000;

// Where a row looks in one layer, of one head or of all; `position` is what the next row goes on from, NaN at the
// start.
struct Aligned {
  float center, width;
  int32_t visible;
  int32_t unused;
  double position, origin;  // and what this one went on from: with another latency it is found again
};

// One sentence. Counts are in tokens.
struct Sentence {
  Sentence(const Model& model, double delta, int64_t first_token);

  bool can_go_on() const { return token != no_token && !through && (layer == nowhere || ended || needed <= arrived); }
  int64_t source_length() const { return ended ? arrived : unknown_length; }

  double delta;
  int64_t arrived = 0, written = 0;
  bool ended = false, through = false;  // through the decoder: the next token has to be chosen
  int64_t token;                        // the decoder's next input; `no_token` once the translation has ended
  int64_t layer = nowhere;              // the decoder layer in front of whose cross-attention the next token stands
  int64_t needed = 0, furthest = 0;
  std::vector<int64_t> unread;                    // of a bidirectional encoder, which starts at the end
  std::vector<GrowingRows> encoder, own, source;  // keys and values of every layer
  GrowingRows heard;                              // what the head of gains sees of the source
  std::vector<std::vector<Aligned>> alignments;   // of every decoder layer
  Array<float> hidden, query, asking;             // what stands in front of a layer
  int64_t slot = 0, row = -1;                     // of the step under way
};

// What `advance` found for the sentences that came through the decoder.
struct Scores {
  std::vector<int64_t> slots, best, needed;
  std::vector<float> positions, widths;  // [n, layers], of the furthest head
};

// Seconds, since the batch was made.
struct Profile {
  double encoder = 0, products = 0, attention = 0, alignment = 0, norms = 0, projection = 0, choice = 0;
  int64_t steps = 0, rows = 0;
};

class Batch {
 public:
  using Sources = std::map<int64_t, std::vector<int64_t>>;

  explicit Batch(std::shared_ptr<const Model> model);

  // Threads: so many at most. All of these throw std::invalid_argument for what cannot be, before anything changes, and
  // std::bad_alloc.
  int64_t open(double delta, int64_t first_token);
  // A token that waits is begun again, in every layer.
  void change_latency(int64_t slot, double delta);
  void close(int64_t slot);
  int64_t fork(int64_t slot);
  void copy(const std::map<int64_t, int64_t>& origins);
  // States of all new tokens, one after the other, slots ascending: [tokens, width]; empty unless `wanted`.
  std::vector<float> push(const Sources& tokens, bool wanted, int threads);
  // Whether any of these could go on; what came through is in `scores` until the next step.
  bool advance(const std::vector<int64_t>& slots, int threads);
  void write(const std::vector<int64_t>& slots, const std::vector<int64_t>& tokens, int64_t end_token);
  // Takes back the source behind `arrived`, and waits for more.
  void take_back(int64_t slot, int64_t arrived);
  // Begins translations anew, from tokens that are given: the last one is the decoder's next input.
  void force(const Sources& tokens, int threads);

  const Scores& scores() const { return scores_; }
  // of a row of `scores`: [target vocabulary]
  const float* logits(int64_t row) const { return logits_.data() + row * padded(model_->settings.target_vocabulary); }
  const Sentence& sentence(int64_t slot) const;
  std::vector<int64_t> slots() const;
  const Model& model() const { return *model_; }
  const Profile& profile() const { return profile_; }
  int64_t bytes() const;
  std::mutex& mutex() { return mutex_; }

 private:
  using Caches = std::vector<GrowingRows> Sentence::*;
  // A row of a pass: a token of a sentence, its place from 0, and how much of the sentence it sees.
  struct Place {
    Sentence* sentence;
    int64_t position, visible;
  };

  // A row of cross-attention.
  struct AttendedSource {
    const Sentence* sentence;
    const Aligned* aligned;
    int64_t alignments;
  };

  Sentence& find(int64_t slot);
  Sources complete_sources(const Sources& tokens);
  void encode(Team& team, const std::vector<Place>& places);
  void step(Team& team, const std::vector<Sentence*>& going);
  void forced_pass(Team& team, const std::vector<Place>& places);
  void embed(Team& team, const float* table, const std::vector<int64_t>& tokens, const std::vector<Place>& places);
  void attend_self(Team& team, const SelfAttention& layer, Caches caches, int64_t index,
                   const std::vector<Place>& places);
  void feed_forward(Team& team, const FeedForward& layer, int64_t rows);
  void align(Team& team, int64_t index, const std::vector<Sentence*>& rows);
  void align_by_gain(Team& team, const std::vector<Sentence*>& rows);
  void scan(Sentence& sentence, const float* asking, float* scratch);
  void resume(int64_t index, Sentence& sentence);
  void settle(int64_t index, Sentence& sentence);
  void attend_source(Team& team, int64_t index, const std::vector<AttendedSource>& rows);
  void keep_and_gather(int64_t index, std::vector<Sentence*>& rows, const std::vector<Sentence*>& going);
  void choose(Team& team, const std::vector<Sentence*>& rows);
  void product(Team& team, const Linear& linear, const float* x, int64_t x_stride, int64_t rows, float* y,
               bool relu = false);
  void normalize(Team& team, const Norm& norm, const float* change, int64_t first, int64_t rows);
  void reach_positions(int64_t count);
  void reserve_rows(int64_t rows);
  template <class Task>
  void each_row(Team& team, int64_t rows, int64_t operations, const Task& task);

  const std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Sentence>> sentences_;
  std::mutex mutex_;
  Scores scores_;
  Profile profile_;

  // of the step under way, [rows, stride] each
  Array<float> hidden_, query_, context_, change_, gathered_hidden_, gathered_query_;
  Array<float> wide_;  // [chunk, the widest], projections and the feed-forward's middle
  Array<float> logits_;
  Array<uint8_t> bytes_;
  Array<float> scales_;
  Array<float> attention_;  // scratch of every thread
  Array<float> positions_;  // [positions, stride], sinusoidal
  int64_t position_count_ = 0;
};

template <class Task>
void Batch::each_row(Team& team, int64_t rows, int64_t operations, const Task& task) {
  if (rows * operations < worth_sharing || team.threads() == 1) {
    for (int64_t row = 0; row < rows; ++row) task(row, 0);
    return;
  }
  const int64_t tasks = std::min<int64_t>(rows, 8 * team.threads());
  team.each(tasks, [&](int64_t index, int thread) {
    for (int64_t row = rows * index / tasks; row < rows * (index + 1) / tasks; ++row) task(row, thread);
  });
}

}  // namespace engine
}  // namespace gma

// JoinRoll: lets ranks that have run out of batches know what those that still train are about to do.
//
// While one is there (within join_uneven_inputs()), a rank that trains announces each call in which all ranks take part, right
// before it. Ranks that have joined await the announcements, and do their part of each. All of that is one all-reduce of a few
// numbers: of the call, in which the ranks that train must agree, and of their own.
//
// Threads:  announce() from the thread that trains and LibTorch's of a backward, one at a time.
// Errors    throws kInvalidArgument, on all ranks, when those that train announce different calls; kPeerLost, kProcessGroup.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace accel {

class ProcessGroup;

class JoinRoll {
 public:
  enum class Call : std::int64_t {
    kForward,   // a: with gradients; b: whose backward exchanges them. most: gradients are there
    kBackward,  // of Accelerator::backward(). most: gradients are there
    kExchange,
    kWeightUnit,  // of weighted micro-batches, see GradientWeights
    kWeightSum,
    kBatch,      // of an accumulation. most: it synchronises
    kClipNorm,   // a, b: bits of max_norm and norm_type
    kClipValue,  // a: bits of clip_value
    kUnscale,
    kStep,
    kZeroGrad,   // a: set_to_none
    kScheduler,  // a: with a metric, b: its bits. most: gradients are synchronised
  };
  static constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::min();
  struct Announcement {
    Call call;
    std::int64_t object = -1;  // its place among `objects`; -1: it concerns none
    std::int64_t a = 0;
    std::int64_t b = 0;
    std::int64_t most = 0;  // ranks that train may differ; the greatest counts
  };

  // objects: what announcements are about, in one order on all ranks. There is one roll at a time.
  JoinRoll(std::shared_ptr<ProcessGroup> group, std::vector<const void*> objects);
  ~JoinRoll();
  JoinRoll(const JoinRoll&) = delete;
  JoinRoll& operator=(const JoinRoll&) = delete;

  // While it lives, what is called is part of a call that was announced.
  class Within {
   public:
    explicit Within(JoinRoll* roll) noexcept : roll_(roll) {
      if (roll_ != nullptr) ++roll_->num_within_;
    }
    ~Within() {
      if (roll_ != nullptr) --roll_->num_within_;
    }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    JoinRoll* roll_;
  };

  // nullptr: no rank may run out of batches.
  [[nodiscard]] static JoinRoll* current() noexcept;
  // For a rank that trains; nullptr also on one that has joined, and within a call that was announced.
  [[nodiscard]] static JoinRoll* of_training() noexcept;
  [[nodiscard]] std::optional<std::int64_t> place_of(const void* object) const;

  // Tells ranks that have joined. Returns the greatest `most`. Requires: every rank that trains calls it.
  std::int64_t announce(const Announcement& announcement);
  // Throws kInvalidArgument for a model's exchange that is none of `objects`: ranks that have joined know nothing of it.
  void require_named(const void* exchange) const;
  // The same of an object; nothing when it is none of `objects`.
  void announce_of(const void* object, Announcement announcement);

  // This rank has joined.
  void join() noexcept { has_joined_ = true; }
  // std::nullopt: every rank has joined. Requires: join().
  [[nodiscard]] std::optional<Announcement> await();

  // Of the last announcement: the last one of the ranks that train.
  [[nodiscard]] int last_training_rank() const noexcept { return last_training_rank_; }
  [[nodiscard]] ProcessGroup& group() const noexcept { return *group_; }

 private:
  std::optional<Announcement> meet(const std::optional<Announcement>& own);

  std::shared_ptr<ProcessGroup> group_;
  std::vector<const void*> objects_;
  bool has_joined_ = false;
  int num_within_ = 0;
  int last_training_rank_;
};

}  // namespace accel

// ExchangeState: which gradients of a backward the ranks exchange, which have come, and what can be exchanged next.
//
// Decisions alone; GradientExchange carries them out. Gradients are exchanged in groups (buckets, units), always in the order of
// their numbers, whatever the order in which gradients come.
//
//   phase      gradients that come        enters on                              leaves on
//   UNDECIDED  are exchanged with sync,   start; the end of a backward;          a forward; the first gradient with sync, or the end
//              else stay                  an exception in one                    of one where another rank has some -> FILLING
//   LOCAL      stay where they are        a forward without sync                 the end of a backward that has brought some;
//                                                                                a forward with sync; an exception
//   ARMED      are exchanged              a forward with sync; arm()             as UNDECIDED with sync; a forward without sync
//   FILLING    are exchanged              the first one, or the end of a         the end of the exchange -> UNDECIDED; a forward,
//                                         backward, see UNDECIDED                but with kIsZero; an exception
//
// When an exchange ends is told by what a backward is to do about parameters without a gradient (Missing):
//
//   kIsRefused  with the backward that brings the last one: several may bring a part each. But one that is UNDECIDED at its first
//               gradient, of which no forward has told, must bring all
//   kIsFound    with the backward: somebody else finds them
//   kIsZero     with the backward, at whose end the rest counts as zero
//
// Threads:  one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace accel {

class ExchangeState {
 public:
  enum class Phase : std::uint8_t { kUndecided, kLocal, kArmed, kFilling };
  enum class Missing : std::uint8_t { kIsRefused, kIsFound, kIsZero };
  static constexpr std::size_t kNoGroup = std::numeric_limits<std::size_t>::max();
  struct Rules {
    Missing missing = Missing::kIsRefused;
    bool allows_second = false;  // gradient of a parameter for one forward
    std::vector<std::size_t>
        group_of;  // by parameter; numbers without gaps. kNoGroup: nothing of it is exchanged
  };

  explicit ExchangeState(Rules rules);

  // ---- what happens

  // A forward with gradients is done.
  void forward();
  // The next backward exchanges.
  void arm();
  // The backward of a forward before the last one begins; with sync, it goes on with the exchange of that forward.
  void resume(bool sync) noexcept;
  void begin(bool is_late);
  // Whether the gradient is the first of its parameter.
  [[nodiscard]] bool arrive(std::size_t parameter);
  // A backward that has brought gradients, or the rest of an exchange, is over.
  void end();
  // An exception ended a backward. Returns whether an exchange had begun, or was to begin.
  [[nodiscard]] bool abandon() noexcept;
  // An optimizer has stepped on the gradients, or they were cleared.
  void settled() noexcept;
  bool set_sync(bool sync) noexcept { return std::exchange(sync_, sync); }

  // ---- what to do

  [[nodiscard]] const Rules& rules() const noexcept { return rules_; }
  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  [[nodiscard]] bool syncs() const noexcept { return sync_; }
  // Whether gradients that come now are exchanged.
  [[nodiscard]] bool exchanges() const noexcept {
    return phase_ != Phase::kLocal && (phase_ != Phase::kUndecided || sync_);
  }
  // Of kIsRefused: whether the exchange began without a forward that told of it.
  [[nodiscard]] bool is_late() const noexcept { return is_late_; }
  // Whether the exchange ends with the backward that is at its end.
  [[nodiscard]] bool is_whole() const noexcept {
    return rules_.missing != Missing::kIsRefused || num_arrived_ == arrived_.size();
  }
  // 1 for parameters whose gradients have come since begin().
  [[nodiscard]] std::span<const std::uint8_t> arrived() const noexcept { return arrived_; }
  [[nodiscard]] std::vector<std::size_t> missing() const;
  // Takes the next group, once all its gradients have come, or, with `at_end`, whatever has come.
  [[nodiscard]] std::optional<std::size_t> next_group(bool at_end);
  // Whether other ranks may wait for this one to say that it has no gradients. Not for the forward of a loss that is only
  // logged, between an exchange and the step: there need not be another on any other rank.
  [[nodiscard]] bool is_owed() const noexcept {
    return phase_ == Phase::kFilling || debt_ == Debt::kExchange;
  }

 private:
  enum class Debt : std::uint8_t { kNone, kNoneBeforeStep, kExchange };

  Rules rules_;
  std::vector<std::size_t> sizes_;  // of groups
  Phase phase_ = Phase::kUndecided;
  Debt debt_ = Debt::kExchange;
  bool sync_ = true;
  bool is_late_ = false;
  std::vector<std::uint8_t> arrived_;  // by parameter
  std::size_t num_arrived_ = 0;
  std::vector<std::size_t> filled_;  // gradients, by group
  std::size_t next_group_ = 0;
};

}  // namespace accel

// StepTrace: in which order units are used in a step, and therefore when each will be used next.
//
// The first step is watched; each later one is compared with the one before it. A use that was expected moves on; one
// that was not is looked for further on in the expected order (a module that was skipped), and if it is not there the
// place in the order stays (a module that was put in). At the end of a step the order that was seen becomes the
// expected one, so a program that changes its way is followed one step later.
//
// Threads:  a value; whoever owns it locks.
// Cost:     use() is a comparison when the unit was expected; next_use() a binary search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace accel::pager {

class StepTrace {
 public:
  explicit StepTrace(std::size_t num_units);

  // An operator uses `unit`; repeated uses in a row count once.
  void use(std::size_t unit);
  void end_step();

  // False until a step with at least one use has ended.
  [[nodiscard]] bool is_known() const noexcept { return !expected_.empty(); }

  // How many uses of other units come before the next one of `unit`, over the end of the step if need be. 0: it is
  // expected now. nullopt: not known, or the step of before did not use it.
  [[nodiscard]] std::optional<std::size_t> next_use(std::size_t unit) const;

  // The next `count` distinct units in the order expected, the soonest first.
  [[nodiscard]] std::vector<std::size_t> upcoming(std::size_t count) const;

  // The unit that this step used last; an operator of it may come again at once.
  [[nodiscard]] std::optional<std::size_t> current() const {
    return seen_.empty() ? std::nullopt : std::optional(seen_.back());
  }

  // When `unit` was used last, as a number that grows with each use; 0: never.
  [[nodiscard]] std::uint64_t last_use(std::size_t unit) const { return last_use_[unit]; }

  [[nodiscard]] std::uint64_t num_uses() const noexcept { return clock_; }
  // Uses that were not the expected one, in steps with an expectation.
  [[nodiscard]] std::uint64_t num_deviations() const noexcept { return deviations_; }

 private:
  std::vector<std::size_t> expected_;
  std::vector<std::vector<std::size_t>> positions_;  // of each unit in expected_
  std::size_t position_ = 0;                         // of the next use in expected_
  std::vector<std::size_t> seen_;
  std::vector<std::uint64_t> last_use_;
  std::uint64_t clock_ = 0;
  std::uint64_t deviations_ = 0;
};

}  // namespace accel::pager

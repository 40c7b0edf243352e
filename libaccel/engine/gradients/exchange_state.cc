#include "libaccel/engine/gradients/exchange_state.h"

#include <algorithm>

namespace accel {

ExchangeState::ExchangeState(Rules rules)
    : rules_(std::move(rules)), arrived_(rules_.group_of.size()) {
  for (const std::size_t group : rules_.group_of) {
    if (group == kNoGroup) continue;
    if (group >= sizes_.size()) sizes_.resize(group + 1);
    ++sizes_[group];
  }
  filled_.resize(sizes_.size());
}

// What fills up at the end of the backward is not lost to a forward in it.
void ExchangeState::forward() {
  if (phase_ == Phase::kFilling && rules_.missing == Missing::kIsZero) return;
  if (sync_) return arm();
  phase_ = Phase::kLocal;
  debt_ = Debt::kNone;
}

void ExchangeState::arm() {
  if (phase_ == Phase::kFilling && rules_.missing == Missing::kIsZero) return;
  phase_ = Phase::kArmed;
  if (debt_ != Debt::kNoneBeforeStep) debt_ = Debt::kExchange;
}

void ExchangeState::resume(bool sync) noexcept {
  if (phase_ == Phase::kUndecided) phase_ = sync ? Phase::kFilling : Phase::kLocal;
}

void ExchangeState::begin(bool is_late) {
  phase_ = Phase::kFilling;
  is_late_ = is_late && rules_.missing == Missing::kIsRefused;
  num_arrived_ = next_group_ = 0;
  std::fill(arrived_.begin(), arrived_.end(), std::uint8_t{0});
  std::fill(filled_.begin(), filled_.end(), std::size_t{0});
}

bool ExchangeState::arrive(std::size_t parameter) {
  if (std::exchange(arrived_[parameter], std::uint8_t{1}) != 0) return false;
  ++num_arrived_;
  if (rules_.group_of[parameter] != kNoGroup) ++filled_[rules_.group_of[parameter]];
  return true;
}

void ExchangeState::end() {
  if (phase_ == Phase::kFilling) debt_ = Debt::kNoneBeforeStep;
  phase_ = Phase::kUndecided;
}

bool ExchangeState::abandon() noexcept {
  const bool had_begun = phase_ == Phase::kArmed || phase_ == Phase::kFilling;
  if (phase_ == Phase::kFilling) debt_ = Debt::kExchange;
  phase_ = Phase::kUndecided;
  return had_begun;
}

void ExchangeState::settled() noexcept {
  if (debt_ == Debt::kNoneBeforeStep) debt_ = Debt::kNone;
}

std::vector<std::size_t> ExchangeState::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < arrived_.size(); ++i) {
    if (arrived_[i] == 0) missing.push_back(i);
  }
  return missing;
}

std::optional<std::size_t> ExchangeState::next_group(bool at_end) {
  const bool is_ready =
      next_group_ < sizes_.size() && (at_end || filled_[next_group_] == sizes_[next_group_]);
  return is_ready ? std::optional(next_group_++) : std::nullopt;
}

}  // namespace accel

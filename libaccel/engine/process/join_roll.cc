// The greatest of the numbers and of their negatives tell together whether all ranks brought the same. A rank that has joined
// brings the least numbers there are, which change nothing.

#include "libaccel/engine/process/join_roll.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace {

JoinRoll* roll_of_process = nullptr;

constexpr std::string_view kJoinOperation = "join_uneven_inputs";
constexpr std::size_t kNumAgreed = 4;
constexpr std::size_t kMost = 2 * kNumAgreed;
constexpr std::size_t kRank = kMost + 1;
constexpr std::size_t kNumValues = kRank + 1;

constexpr std::array<std::string_view, 12> kCalls = {"a forward",
                                                     "backward()",
                                                     "an exchange of gradients",
                                                     "the unit of weights",
                                                     "the sum of weights",
                                                     "accumulate()",
                                                     "clip_grad_norm_()",
                                                     "clip_grad_value_()",
                                                     "unscale_gradients()",
                                                     "step() of an optimizer",
                                                     "zero_grad() of an optimizer",
                                                     "step() of a scheduler"};
static_assert(kCalls.size() == static_cast<std::size_t>(JoinRoll::Call::kScheduler) + 1);

std::string text_of_call(const JoinRoll::Announcement& announcement) {
  const auto call = static_cast<std::size_t>(announcement.call);
  std::string text(kCalls.at(call));
  if (announcement.object >= 0) text += ", object " + std::to_string(announcement.object);
  return text;
}

}  // namespace

JoinRoll::JoinRoll(std::shared_ptr<ProcessGroup> group, std::vector<const void*> objects)
    : group_(std::move(group)), objects_(std::move(objects)), last_training_rank_(0) {
  if (roll_of_process != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "join_uneven_inputs() within join_uneven_inputs()",
                "name all models in one call");
  }
  roll_of_process = this;
}

JoinRoll::~JoinRoll() {
  roll_of_process = nullptr;
}

JoinRoll* JoinRoll::current() noexcept {
  return roll_of_process;
}

JoinRoll* JoinRoll::of_training() noexcept {
  const bool announces = roll_of_process != nullptr && !roll_of_process->has_joined_ &&
                         roll_of_process->num_within_ == 0;
  return announces ? roll_of_process : nullptr;
}

std::optional<std::int64_t> JoinRoll::place_of(const void* object) const {
  const auto found = std::find(objects_.begin(), objects_.end(), object);
  return found == objects_.end() ? std::nullopt : std::optional(found - objects_.begin());
}

void JoinRoll::require_named(const void* exchange) const {
  if (place_of(exchange)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "a model that join_uneven_inputs() does not name is called within it",
      "name all models that are trained: join_uneven_inputs(first, second); prepare others with "
      "prepare_model(model, {.evaluation_mode = true})");
}

std::int64_t JoinRoll::announce(const Announcement& announcement) {
  return meet(announcement)->most;
}

void JoinRoll::announce_of(const void* object, Announcement announcement) {
  const std::optional<std::int64_t> place = place_of(object);
  if (!place) return;
  announcement.object = *place;
  announce(announcement);
}

std::optional<JoinRoll::Announcement> JoinRoll::await() {
  return meet(std::nullopt);
}

std::optional<JoinRoll::Announcement> JoinRoll::meet(const std::optional<Announcement>& own) {
  at::Tensor numbers = at::full({static_cast<std::int64_t>(kNumValues)}, kNobody, at::kLong);
  auto* const values = numbers.mutable_data_ptr<std::int64_t>();
  if (own) {
    const std::array<std::int64_t, kNumAgreed> agreed = {
        static_cast<std::int64_t>(own->call), own->object, own->a, own->b};
    for (std::size_t i = 0; i < kNumAgreed; ++i) {
      values[i] = std::max(agreed[i], kNobody + 1);  // so that it has a negative
      values[kNumAgreed + i] = -values[i];
    }
    values[kMost] = own->most;
    values[kRank] = group_->rank();
  }
  group_->all_reduce_(numbers, Reduction::kMax, kJoinOperation);
  if (values[kRank] == kNobody) return std::nullopt;
  last_training_rank_ = static_cast<int>(values[kRank]);
  const Announcement greatest{.call = static_cast<Call>(values[0]),
                              .object = values[1],
                              .a = values[2],
                              .b = values[3],
                              .most = values[kMost]};
  for (std::size_t i = 0; i < kNumAgreed; ++i) {
    if (values[i] == -values[kNumAgreed + i]) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        "ranks that still have batches do different things in join_uneven_inputs(): one comes to " +
            text_of_call(greatest) + ", " +
            (own ? "rank " + std::to_string(group_->rank()) + " to " + text_of_call(*own)
                 : std::string("another to something else")),
        "let every rank make the same calls for each of its batches, with the same values");
  }
  return greatest;
}

}  // namespace accel

// A sum is finite only when all numbers are: neither an infinity nor a NaN goes away by adding. So one sum of each gradient, at the
// speed of memory, finds all that need a closer look; sums that overflow by themselves get one, too.

#include "libaccel/api/accelerator/nan_watcher.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_values.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/StringUtil.h>

#include <accel/channel.h>
#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "libaccel/tensors/checked_number.h"
#include "runtime/robust_spread.h"

namespace accel::detail {
namespace {

constexpr int kLeastLosses = 16;

std::int64_t count_not_finite(const at::Tensor& gradient) {
  at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (values.is_complex()) values = at::view_as_real(values);
  if (values.numel() == 0 || std::isfinite(values.sum().item<double>())) return 0;
  return values.numel() - at::isfinite(values).sum().item<std::int64_t>();
}

}  // namespace

NanWatcher::NanWatcher(const NanWatch& options, const Preparation& prepared)
    : options_(options), prepared_(prepared) {
  check_number(options.window >= kLeastLosses, "nan_watch.window", options.window, "16 or more");
  check_number(
      options.spike_score >= 0, "nan_watch.spike_score", options.spike_score, "0 or above");
}

void NanWatcher::hook_parameters() {
  if (prepared_.models == models_) return;
  let_go();
  models_ = prepared_.models;
  // Overflows are the scaler's to deal with.
  if (prepared_.scaler != nullptr) return;
  for (const auto& model : models_) {
    for (NamedParameter& parameter : trainable_parameters(*model->module())) {
      const std::size_t index = parameters_.size();
      hooks_.push_back(interception::before_adding(
          parameter.tensor, [this, index](const at::Tensor& arriving) { see(index, arriving); }));
      parameters_.push_back(std::move(parameter));
    }
  }
}

void NanWatcher::let_go() noexcept {
  hooks_.clear();
  parameters_.clear();
  models_.clear();
}

void NanWatcher::begin(const at::Tensor& loss, std::int64_t backward, bool counts) {
  hook_parameters();
  backward_ = backward;
  counts_ = counts;
  finding_.reset();
  if (counts && options_.spike_score > 0 && loss.numel() == 1) judge_loss(loss.item<double>());
}

void NanWatcher::see(std::size_t parameter, const at::Tensor& gradient) {
  if (!counts_ || finding_ || !gradient.defined()) return;
  const at::NoGradGuard no_grad;
  const std::int64_t bad = count_not_finite(gradient);
  if (bad > 0) finding_ = Finding{static_cast<std::int64_t>(parameter), bad, gradient.numel()};
}

void NanWatcher::judge_loss(double loss) {
  loss_ = loss;
  if (!std::isfinite(loss)) {
    if (prepared_.scaler == nullptr) finding_ = Finding{kLoss, 1, 1};
    return;
  }
  if (losses_.size() >= static_cast<std::size_t>(kLeastLosses)) {
    const auto [median, sigma] = robust_spread({losses_.begin(), losses_.end()});
    const double score = sigma > 0 ? (loss - median) / sigma : 0;
    if (score > options_.spike_score) {
      tell({.kind = TrainingAnomaly::Kind::kLossSpike,
            .rank = prepared_.state.process_index(),
            .backward = backward_,
            .loss = loss,
            .score = score,
            .text = "backward " + std::to_string(backward_) + ": the loss jumps to " +
                    c10::str(loss) + ", " + c10::str(std::round(score)) +
                    " deviations above the median " + c10::str(median) + " of the last " +
                    std::to_string(losses_.size())});
    }
  }
  losses_.push_back(loss);
  if (losses_.size() > static_cast<std::size_t>(options_.window)) losses_.pop_front();
}

TrainingAnomaly NanWatcher::described(const Finding& finding, int rank) const {
  TrainingAnomaly anomaly = {.rank = rank, .backward = backward_};
  const std::string when = "backward " + std::to_string(backward_) + ": ";
  if (finding.parameter == kLoss) {
    anomaly.kind = TrainingAnomaly::Kind::kLossNotFinite;
    anomaly.loss = loss_;
    anomaly.text = when + "the loss is not finite";
    return anomaly;
  }
  anomaly.kind = TrainingAnomaly::Kind::kGradientNotFinite;
  anomaly.parameter = parameters_.at(static_cast<std::size_t>(finding.parameter)).name;
  anomaly.text = when + "the gradient of " + anomaly.parameter + " has " +
                 std::to_string(finding.bad) + " of " + std::to_string(finding.numbers) +
                 " numbers that are not finite";
  return anomaly;
}

void NanWatcher::tell(TrainingAnomaly anomaly) const {
  if (options_.on_anomaly) options_.on_anomaly(anomaly);
  prepared_.logger.warning(anomaly.text, {.main_process_only = false});
  if (WorkerChannel* const channel = supervisor_channel()) channel->notice(anomaly.text);
}

void NanWatcher::end() {
  const bool is_news = finding_ && (!is_told_ || options_.action == OnAnomaly::kThrow);
  std::exception_ptr of_program;
  try {
    if (is_news) tell(described(*finding_, prepared_.state.process_index()));
  } catch (...) {
    of_program = std::current_exception();  // the other ranks wait for this one first
  }
  is_told_ = finding_.has_value();
  try {
    if (options_.action == OnAnomaly::kThrow) throw_on_all_ranks();
  } catch (const Error&) {
    if (of_program == nullptr) throw;  // else what the program threw says more
  }
  if (of_program != nullptr) std::rethrow_exception(of_program);
}

void NanWatcher::throw_on_all_ranks() const {
  const Finding own = finding_.value_or(Finding{});
  const std::array<std::int64_t, 4> said = {finding_ ? 1 : 0, own.parameter, own.bad, own.numbers};
  at::Tensor record = at::empty({4}, at::kLong);
  std::copy(said.begin(), said.end(), record.mutable_data_ptr<std::int64_t>());
  const std::shared_ptr<ProcessGroup> group = prepared_.state.process_group();
  const at::Tensor all = group ? group->all_gather(record, "nan_watch") : record.view({1, 4});
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto* row = all.const_data_ptr<std::int64_t>() + 4 * rank;
    if (row[0] == 0) continue;
    const TrainingAnomaly first = described({row[1], row[2], row[3]}, static_cast<int>(rank));
    throw Error(ErrorCode::kNotFinite,
                first.text + ", on rank " + std::to_string(rank) + " first",
                "look at the loss and the input of that rank; a lower learning rate and clipping "
                "(clip_grad_norm_) help where weights grow");
  }
}

}  // namespace accel::detail

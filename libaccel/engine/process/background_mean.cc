#include "libaccel/engine/process/background_mean.h"

#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <accel/detail/step_span.h>

#include "libaccel/engine/collectives/quiet_thread.h"
#include "libaccel/engine/process/process_group.h"

namespace accel {

BackgroundMean::BackgroundMean(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

BackgroundMean::~BackgroundMean() {
  if (!thread_.joinable()) return;
  if (!is_done_) group_->c10d_group()->getDefaultBackend()->abort();
  thread_.join();
}

void BackgroundMean::begin(at::Tensor values) {
  values_ = std::move(values);
  error_ = nullptr;
  is_done_ = group_ == nullptr || group_->size() == 1;
  if (is_done_) return;
  try {
    thread_ = start_quiet_thread("accel-mean", "averages outer gradients", [this] { run(); });
  } catch (...) {
    values_.reset();
    throw;
  }
}

void BackgroundMean::restore(at::Tensor mean) {
  if (thread_.joinable()) thread_.join();
  values_ = std::move(mean);
  error_ = nullptr;
  is_done_ = true;
}

void BackgroundMean::run() noexcept {
  try {
    group_->all_reduce_(values_, Reduction::kMean, "averaging outer gradients");
  } catch (...) {
    error_ = std::current_exception();
  }
  is_done_ = true;
}

const at::Tensor& BackgroundMean::wait() {
  if (thread_.joinable()) {
    const detail::StepSpan span(detail::StepPart::kCommunication);
    thread_.join();
  }
  if (error_) std::rethrow_exception(error_);
  return values_;
}

at::Tensor BackgroundMean::take() {
  (void)wait();
  return std::exchange(values_, at::Tensor());
}

}  // namespace accel

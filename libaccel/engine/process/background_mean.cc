#include "libaccel/engine/process/background_mean.h"

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

#include <pthread.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <accel/detail/step_span.h>
#include <accel/error.h>

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
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string why_not;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& cause) {
    why_not = cause.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (why_not.empty()) return;
  values_.reset();
  throw Error(ErrorCode::kProcessGroup,
              "cannot start the thread that averages outer gradients: " + why_not,
              "raise the limit on threads (`ulimit -u`, pids.max of the cgroup)");
}

void BackgroundMean::restore(at::Tensor mean) {
  if (thread_.joinable()) thread_.join();
  values_ = std::move(mean);
  error_ = nullptr;
  is_done_ = true;
}

void BackgroundMean::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "accel-mean");
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

// NoticeBoard: what the sinks have to tell the user, kept for the report and passed on at once.
//
// Threads:  any thread. The listener is called with a lock held: it must not call back.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accel::supervisor {

class NoticeBoard {
 public:
  explicit NoticeBoard(std::function<void(std::string)> on_notice)
      : on_notice_(std::move(on_notice)) {}

  void post(std::string notice) {
    const std::lock_guard lock(mutex_);
    if (notices_.size() < kMaxNotices) notices_.push_back(notice);
    if (on_notice_) on_notice_(std::move(notice));
  }

  // From now on notices are only kept: whoever listened goes away. A writer that hangs in a system call
  // may still be there.
  void stop_passing_on() {
    const std::lock_guard lock(mutex_);
    on_notice_ = nullptr;
  }

  void post_if(std::optional<std::string> notice) {
    if (notice) post(*std::move(notice));
  }

  [[nodiscard]] std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return notices_;
  }

 private:
  static constexpr std::size_t kMaxNotices = 100;

  std::function<void(std::string)> on_notice_;
  mutable std::mutex mutex_;
  std::vector<std::string> notices_;
};

}  // namespace accel::supervisor

// FakeWorkerHost: a shim that says what the test put in and remembers what it was asked.
#pragma once

#include <deque>
#include <vector>

#include <sys/eventfd.h>

#include "runtime/supervisor/owner/worker_host.h"

namespace accel::test {

class FakeWorkerHost final : public supervisor::WorkerHost {
 public:
  std::vector<supervisor::HostRequest> requests;

  void push(supervisor::HostEvent event) { events_.emplace_back(std::move(event)); }
  void fail(Error error) { events_.emplace_back(std::move(error)); }

  // Never readable.
  [[nodiscard]] int silent_fd() const { return silent_.get(); }

  int event_fd() const override { return ready_.get(); }

  Result<std::optional<supervisor::HostEvent>> next_event() override {
    if (events_.empty()) return std::optional<supervisor::HostEvent>();
    bytes += bytes_each;
    auto event = std::move(events_.front());
    events_.pop_front();
    if (auto* error = std::get_if<Error>(&event)) return std::move(*error);
    return std::optional(std::get<supervisor::HostEvent>(std::move(event)));
  }

  void request(const supervisor::HostRequest& request) override { requests.push_back(request); }
  void kill_shim(const std::string& why) override {
    fail(Error(ErrorCode::kShimLost, "accel-shim " + why));
  }
  std::uint64_t bytes_received() const override { return bytes; }
  int num_unkillable() const override { return unkillable; }
  bool is_end_proved() const override { return is_proved; }

  std::uint64_t bytes = 0;
  std::uint64_t bytes_each = 0;  // that an event is to have
  int unkillable = 0;
  bool is_proved = true;

 private:
  UniqueFd ready_{::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)};
  UniqueFd silent_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::deque<std::variant<supervisor::HostEvent, Error>> events_;
};

}  // namespace accel::test

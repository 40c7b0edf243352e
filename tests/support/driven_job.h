// DrivenJob: a shim whose generations the test drives, and what it told so far.
#pragma once

#include <deque>
#include <memory>
#include <stdexcept>
#include <variant>
#include <vector>

#include "tests/support/fault_job.h"

namespace accel::test {

class DrivenJob {
 public:
  explicit DrivenJob(const supervisor::JobSpec& spec);
  explicit DrivenJob(std::unique_ptr<supervisor::WorkerHost> host) : host_(std::move(host)) {}

  void ask(const supervisor::HostRequest& request) { host_->request(request); }

  // The next event of this kind; those before it are kept for all(). Throws when patience ends or
  // the shim is lost.
  template <typename T>
  T wait_for() {
    while (true) {
      supervisor::HostEvent event = next();
      if (const T* match = std::get_if<T>(&event)) return *match;
    }
  }

  template <typename T>
  [[nodiscard]] std::vector<T> all() const {
    std::vector<T> found;
    for (const auto& event : events_) {
      if (const T* match = std::get_if<T>(&event)) found.push_back(*match);
    }
    return found;
  }

  // The next event, whatever it is.
  supervisor::HostEvent next();

  // Lets go of the shim as a dead owner does.
  void abandon() { host_.reset(); }

 private:
  std::unique_ptr<supervisor::WorkerHost> host_;
  std::vector<supervisor::HostEvent> events_;
};

// Whether something listens there and keeps the connection.
[[nodiscard]] bool can_connect(const std::string& address, int port);

}  // namespace accel::test

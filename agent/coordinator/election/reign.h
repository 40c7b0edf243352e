// Reign: one coordinator's time as the leader: what it begins with, where its records go, until when it may act.
//
// Threads:  take_over() blocks on the store and may run on any one thread; LeadTerm may be read and extended by several.
// Source:   docs/internals/rendezvous.md, "Who leads".
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include <accel/result.h>

#include "agent/coordinator/decisions/coordinator.h"
#include "agent/coordinator/journal/state_store.h"

namespace accel::agent {

// Until when a leader that was elected may act without hearing from etcd again.
class LeadTerm {
 public:
  explicit LeadTerm(TimePoint until) : until_(until.time_since_epoch().count()) {}

  // Never makes it shorter.
  void extend(TimePoint until) noexcept {
    const auto wanted = until.time_since_epoch().count();
    auto present = until_.load();
    while (present < wanted && !until_.compare_exchange_weak(present, wanted)) {
    }
  }
  void end() noexcept { until_.store(TimePoint::min().time_since_epoch().count()); }

  [[nodiscard]] bool is_over(TimePoint now) const noexcept {
    return now.time_since_epoch().count() >= until_.load();
  }

 private:
  std::atomic<Duration::rep> until_;
};

// Where agents find the coordinator.
struct Leader {
  std::string address;  // "10.0.0.1:29400"; empty: nobody leads, as far as is known
  std::uint64_t epoch = 0;

  bool operator==(const Leader&) const = default;
};

struct Reign {
  Step beginning;
  std::unique_ptr<StateStore> store;     // none: what is decided lives and dies with this process
  std::shared_ptr<const LeadTerm> term;  // none: it does not end
};

// A coordinator that goes on from the records in `store`, as leader `epoch` (none: one more than is recorded). The
// epoch is written when it returns: the first agent may be heard.
// Errors  those of the store; kProtocol and others for a record that cannot be read; kInvalidArgument: a higher epoch
//         is recorded.
[[nodiscard]] Result<Reign> take_over(std::unique_ptr<StateStore> store,
                                      std::optional<std::uint64_t> epoch,
                                      const CoordinatorConfig& config,
                                      TimePoint now);

}  // namespace accel::agent

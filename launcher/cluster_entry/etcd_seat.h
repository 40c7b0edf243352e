// EtcdSeat: the seat of machine 0 at a key in etcd, which belongs to whoever wrote there first, while he lives.
//
// Made by libaccel_cluster.so: a launch without etcd needs no gRPC.
//
// Threads:  one at a time. Calls block, for about a second when nobody answers.
// Source:   launcher/cluster/meeting/etcd_key.h carries it out; launcher/start/machines/main/etcd_meeting.h uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <accel/result.h>

#include "launcher/flags/etcd_access.h"

namespace accel::launcher {

class EtcdSeat {
 public:
  virtual ~EtcdSeat() = default;  // gives it up

  // By which other machines reach this one.
  [[nodiscard]] virtual const std::string& own_address() const = 0;

  // Writes `place` unless something stands there, and gives what does then. Our own is kept until
  // give_up(), and goes kLease after our end when we cannot say that.
  // Errors  kEtcdUnreachable, kAuthentication, kDiskFull, kInvalidArgument.
  [[nodiscard]] virtual Result<std::string> take(const std::string& place) = 0;
  // Errors  kStoreUnreachable: nothing takes connections there.
  [[nodiscard]] virtual Result<void> reach(const std::string& host, std::uint16_t port) = 0;

  // Of our place: higher than that of any place before it.
  [[nodiscard]] virtual std::uint64_t term() const = 0;

  // Waits no longer than a loop can stand still; etcd may hear of it later.
  virtual void give_up() = 0;
  // What stands there in the place of ours since etcd did not hear from us for too long; empty: nothing.
  [[nodiscard]] virtual std::string successor() const = 0;
};

struct EtcdFunctions {
  // Errors  kTls, kInvalidArgument: files or endpoint; kEtcdUnreachable: its name has no address.
  Result<std::unique_ptr<EtcdSeat>> (*open)(const EtcdAccess& access, const std::string& run_id);
};

// The library's function that gives a const EtcdFunctions*.
inline constexpr const char* kEtcdEntry = "accel_cluster_etcd_functions";

}  // namespace accel::launcher

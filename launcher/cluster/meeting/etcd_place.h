// EtcdPlace: where the nodes of an elastic job meet by etcd, at first and whenever the launcher that hosted is gone.
//
//   open_etcd() --> a coordinator listens on this machine --> meet_at_etcd() --> it hosts, or another launcher does
//
// What stands in etcd can be reached: a port is written there after it was bound. A launcher that does not host closes
// its own again.
//
// Threads:  any one; both block, for as long as names and etcd take.
// Source:   docs/internals/rendezvous.md "Without a daemon"; tests/integration/elastic/etcd.py.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include <accel/result.h>

#include "launcher/cluster/meeting/meeting_place.h"
#include "launcher/cluster_entry/etcd_seat.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "runtime/clock.h"

namespace accel::cluster {

// What this launcher offers to be.
struct EtcdOffer {
  MeetingPlace place;  // with its papers
  std::unique_ptr<launcher::EtcdSeat> seat;
  std::string listen;  // where its coordinator is to listen, at port 0
};

// Errors  those of EtcdKey::open() and with_papers(); kInvalidArgument: others would have to come here in the open.
[[nodiscard]] Result<EtcdOffer> open_etcd(const launcher::ElasticSettings& settings,
                                          TimePoint end,
                                          const std::stop_token& stop);

// With a coordinator that listens at `port`. The place has the seat when this launcher hosts. `say` takes a line for
// people while it goes on. A place that was not found because of `stop` is an error that nobody reads.
// Errors  those of meet_by_etcd(), after `end` at the latest.
[[nodiscard]] Result<MeetingPlace> meet_at_etcd(EtcdOffer offer,
                                                std::uint16_t port,
                                                const launcher::ElasticSettings& settings,
                                                TimePoint end,
                                                const std::stop_token& stop,
                                                const std::function<void(const std::string&)>& say);

}  // namespace accel::cluster

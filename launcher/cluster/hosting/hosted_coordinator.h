// HostedCoordinator: the coordinator in this launcher, while it is the one that hosts.
//
//   none --begin(): the place is ours--> hosting --close(), end--> ended
//     |                                    '--step_down(); by etcd: the seat was lost--> none
//     '--offer(): by etcd, it listens already--> offered --begin()--> hosting
//                                                   '--decline()--> none
//
// By etcd it is the coordinator only as long as nobody else has the seat: it looks for that, and goes when the nodes may
// meet there. Those that have listened for nothing, or went, are kept until the end: nodes may have sessions with them.
//
// Threads:  everything on the loop.
// Source:   docs/internals/rendezvous.md "Without a daemon".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "agent/coordinator/state/state.h"
#include "launcher/cluster/hosting/coordinator_seat.h"
#include "launcher/cluster/meeting/meeting_place.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "runtime/clock.h"

namespace accel::cluster {

// By etcd: under another host, when this one is lost. With hard fencing nobody could vouch that its workers are dead.
[[nodiscard]] bool may_go_on_elsewhere(const launcher::ElasticSettings& settings);

class HostedCoordinator {
 public:
  struct Handlers {
    std::function<void(Error)> on_end;            // this launcher can go on no more
    std::function<bool()> is_ending;              // so it looks for no other host
    std::function<void(const std::string&)> say;  // a line for people
  };
  // `request` and `place` outlive it; `place` is where this launcher meets the others, as far as it knows by now.
  HostedCoordinator(boost::asio::io_context& loop,
                    const launcher::ElasticRequest& request,
                    MeetingPlace& place,
                    Handlers handlers);

  // Makes a coordinator that listens, and is not yet the one. Errors  those of CoordinatorSeat::take().
  [[nodiscard]] Result<std::unique_ptr<CoordinatorSeat>> listen(const MeetingPlace& place,
                                                                const std::string& at);

  // By etcd, which has said that it is the one; may be null. begin() makes it that.
  void offer(std::unique_ptr<CoordinatorSeat> seat) { offered_ = std::move(seat); }
  void decline() { retire(std::move(offered_)); }

  // Hosts when the place is ours, and gives the place its endpoint. By etcd its epoch is higher than that of any
  // coordinator that etcd has heard of, and than `known_epoch`. Errors  those of CoordinatorSeat::take() and publish().
  [[nodiscard]] Result<void> begin(std::uint64_t known_epoch);

  [[nodiscard]] bool has_seat() const { return seat_ != nullptr; }
  // Null: it is not here, or not begun.
  [[nodiscard]] const agent::Job* job() const;
  void stop_job(supervisor::Milliseconds grace);

  // Ends the sessions of nodes whose certificate is on the list.
  void end_revoked(const agent::RevocationList& revoked);

  // Takes its leave of its nodes.
  void retire(std::unique_ptr<CoordinatorSeat> seat);
  void step_down() { retire(std::move(seat_)); }

  // Once nothing runs here any more; `done` on the loop, when no node has a session with any of them. By etcd the others go
  // on without us. Once.
  void close(std::function<void()> done);

 private:
  void take_offered(std::uint64_t known_epoch);
  [[nodiscard]] Result<void> publish_endpoint();
  void on_report(const agent::Report& report);
  void watch_seat();
  void on_lost(const Error& lost);
  void on_ended();

  boost::asio::io_context& loop_;
  const launcher::ElasticRequest& request_;
  MeetingPlace& place_;
  Handlers handlers_;
  SteadyClock clock_;
  boost::asio::steady_timer watch_;
  std::unique_ptr<CoordinatorSeat> seat_;
  std::unique_ptr<CoordinatorSeat> offered_;
  std::vector<std::unique_ptr<CoordinatorSeat>> retired_;
  int num_ending_ = 0;               // coordinators whose nodes may not have gone yet
  std::function<void()> on_closed_;  // waits for them
};

}  // namespace accel::cluster

// MeetingPlace: where a launcher finds the coordinator, whether it hosts it, and what it shows there.
//
// Finding it may take long and hang: names are looked up, a folder is waited for, addresses are tried. So it is done
// on a thread of its own, beside the launcher's loop.
//
// Threads:  any one; blocks.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <accel/result.h>

#include "agent/config/agent_config.h"
#include "launcher/cluster/meeting/job_folder.h"
#include "launcher/cluster_entry/etcd_seat.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "runtime/clock.h"
#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::cluster {

struct MeetingPlace {
  std::optional<std::string> listen;  // this launcher hosts, here
  supervisor::TcpEndpoint endpoint;   // where to connect; port 0: that of our own coordinator
  bool is_local = false;              // loopback is what the user meant
  bool is_open = false;               // nobody has to show anything, from wherever he comes
  agent::TlsFiles tls;
  std::string token_key;
  std::optional<JobFolder> folder;           // kept as long as its certificates serve
  std::unique_ptr<launcher::EtcdSeat> seat;  // by etcd, and this launcher hosts
  std::string host_id;                       // by etcd: of the launcher that hosts
};

// Where there is no etcd; etcd_place.h is for where there is one. A place that was not found because of `stop` is an
// error that nobody reads.
// Errors  kInvalidArgument, kAuthentication, kTls, kFileIo; kRendezvousTimeout.
[[nodiscard]] Result<MeetingPlace> find_meeting_place(const launcher::ElasticSettings& settings,
                                                      const std::stop_token& stop);

// What a node shows at an endpoint, and what is shown to it. Takes no time. Errors  kAuthentication, kFileIo, kTls.
[[nodiscard]] Result<MeetingPlace> with_papers(const launcher::ElasticSettings& settings);

// Why it cannot be the place: a token alone keeps nobody out who listens on the way.
[[nodiscard]] std::optional<Error> find_exposure(const MeetingPlace& place,
                                                 const launcher::ElasticSettings& settings);

// A name service that is slow or not up yet is asked again. Errors  those of resolve_endpoint().
[[nodiscard]] Result<std::vector<supervisor::TcpEndpoint>> resolve_patiently(
    const std::string& text, TimePoint end, const std::stop_token& stop);

// Whether a node goes on at `leader` ("ADDR:PORT"), which the coordinator named: it is believed by its certificate, of the
// role launcher or node; without certificates only on this machine, unless the job is open.
[[nodiscard]] bool may_follow(const std::string& leader, bool is_insecure, bool is_open);

}  // namespace accel::cluster

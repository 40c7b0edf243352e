// MeetingPlace: where a launcher finds the coordinator, whether it hosts it, and what it shows there.
//
// Finding it may take long and hang: names are looked up, a folder is waited for, addresses are tried. So it is done
// on a thread of its own, beside the launcher's loop.
//
// Threads:  any one; blocks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include <accel/result.h>

#include "agent/agent_config.h"
#include "launcher/cluster/job_folder.h"
#include "launcher/elastic_settings.h"
#include "launcher/etcd_seat.h"

namespace accel::cluster {

struct MeetingPlace {
  std::optional<std::string> listen;  // this launcher hosts, here
  agent::TcpAddress endpoint;         // where to connect; port 0: that of our own coordinator
  bool is_local = false;              // loopback is what the user meant
  bool is_open = false;               // nobody has to show anything, from wherever he comes
  agent::TlsFiles tls;
  std::string token_key;
  std::optional<JobFolder> folder;           // kept as long as its certificates serve
  std::unique_ptr<launcher::EtcdSeat> seat;  // by etcd, and this launcher hosts
};

// `say` takes a line for people while it goes on. A place that was not found because of `stop` is an error that nobody reads.
// Errors  kInvalidArgument, kAuthentication, kTls, kFileIo; kRendezvousTimeout; those of meet_by_etcd().
[[nodiscard]] Result<MeetingPlace> find_meeting_place(
    const launcher::ElasticSettings& settings,
    const std::stop_token& stop,
    const std::function<void(const std::string&)>& say);

// Whether a node goes on at `leader` ("ADDR:PORT"), which the coordinator named: it is believed by its certificate, of the
// role node; without certificates only on this machine, unless the job is open.
[[nodiscard]] bool may_follow(const std::string& leader, bool is_insecure, bool is_open);

}  // namespace accel::cluster

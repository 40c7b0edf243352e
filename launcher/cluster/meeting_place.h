// MeetingPlace: where a launcher finds the coordinator, whether it hosts it, and what it shows there.
//
// Finding it may take long and hang: names are looked up, a folder is waited for, addresses are tried. So it is done
// on a thread of its own, beside the launcher's loop.
//
// Threads:  any one; blocks.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include <accel/result.h>

#include "agent/agent_config.h"
#include "launcher/cluster/job_folder.h"
#include "launcher/elastic_settings.h"

namespace accel::cluster {

struct MeetingPlace {
  std::optional<std::string> listen;  // this launcher hosts, here
  agent::TcpAddress endpoint;         // where to connect; port 0: that of our own coordinator
  bool is_local = false;              // loopback is what the user meant
  bool is_open = false;               // nobody has to show anything, from wherever he comes
  agent::TlsFiles tls;
  std::string token_key;
  std::optional<JobFolder> folder;  // kept as long as its certificates serve
};

// Errors  kInvalidArgument, kAuthentication, kTls, kFileIo; kRendezvousTimeout.
[[nodiscard]] Result<MeetingPlace> find_meeting_place(const launcher::ElasticSettings& settings,
                                                      const std::stop_token& stop);

}  // namespace accel::cluster

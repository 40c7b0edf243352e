#include "launcher/cluster/meeting/meeting_place.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "agent/rendezvous/token_proof.h"
#include "agent/tls/tls_credentials.h"
#include "launcher/cluster/meeting/endpoint.h"
#include "launcher/text/program.h"
#include "runtime/clock.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/joined.h"

namespace accel::cluster {
namespace {

using launcher::ElasticSettings;
using launcher::Meeting;

constexpr std::chrono::seconds kLookUp{2};
constexpr std::chrono::seconds kConnect{3};
constexpr std::chrono::milliseconds kTryAgain{300};
constexpr const char* kEverywhere = "[::]:";

// One address is not tried here: gRPC does that, and says why it fails.
Result<TcpEndpoint> choose_address(const std::vector<TcpEndpoint>& addresses,
                                   TimePoint end,
                                   const std::stop_token& stop) {
  if (addresses.size() == 1) return addresses.front();
  while (true) {
    if (const auto reached = first_reachable(addresses, kConnect, stop)) return *reached;
    if (stop.stop_requested() || SteadyClock().now() >= end) {
      return Error(
          ErrorCode::kRendezvousTimeout,
          "the coordinator answers at none of " +
              joined(addresses, ", ", [](const auto& endpoint) { return to_text(endpoint); }),
          "see whether a firewall is between the nodes, and whether the first one runs");
    }
    std::this_thread::sleep_for(kTryAgain);
  }
}

Result<MeetingPlace> find_endpoint(const ElasticSettings& settings,
                                   TimePoint end,
                                   const std::stop_token& stop) {
  auto papers = with_papers(settings);
  if (!papers) return papers;
  MeetingPlace place = *std::move(papers);
  const auto addresses = resolve_patiently(settings.endpoint, end, stop);
  if (!addresses) return addresses.error();
  place.is_local = addresses->front().address().is_loopback() && !is_by_name(settings.endpoint);
  if (auto exposed = find_exposure(place, settings)) return *std::move(exposed);
  const auto ours = std::find_if(addresses->begin(), addresses->end(), is_ours_and_free);
  if (ours != addresses->end()) {
    // A machine's own name often means its loopback address to itself: others could not come there.
    place.listen =
        is_by_name(settings.endpoint) ? kEverywhere + std::to_string(ours->port()) : to_text(*ours);
    place.endpoint = *ours;
    return place;
  }
  const auto chosen = choose_address(*addresses, end, stop);
  if (!chosen) return chosen.error();
  place.endpoint = *chosen;
  return place;
}

// What the folder of the job gives to a node, host or not.
Result<void> take_papers(MeetingPlace& place, JobFolder folder, const std::string& node_id) {
  auto token = agent::read_token(folder.token_file());
  if (!token) return std::move(token).error();
  place.token_key = agent::token_key(*token);
  auto certificate = folder.certificate(node_id);
  if (!certificate) return std::move(certificate).error();
  auto files = agent::tls_files_in(*certificate);
  if (!files) return std::move(files).error();
  place.tls = *std::move(files);
  place.folder = std::move(folder);
  return {};
}

Result<MeetingPlace> make_place(const ElasticSettings& settings) {
  MeetingPlace place;
  auto folder = JobFolder::make(settings.job_folder);
  if (!folder) return std::move(folder).error();
  if (auto taken = take_papers(place, *std::move(folder), settings.node_id); !taken)
    return std::move(taken).error();
  place.listen = std::string(kEverywhere) + "0";
  return place;
}

// The address from which srun came is one that reaches its machine; the others are what that machine thinks.
Result<MeetingPlace> find_host_node(const ElasticSettings& settings,
                                    TimePoint end,
                                    const std::stop_token& stop) {
  MeetingPlace place;
  auto folder = JobFolder::find(
      settings.job_folder, std::chrono::seconds(settings.join_timeout_seconds), stop);
  if (!folder) return std::move(folder).error();
  std::vector<TcpEndpoint> addresses;
  for (const std::string& line : folder->endpoints()) {
    if (const auto address = supervisor::parse_tcp_endpoint(line)) addresses.push_back(*address);
  }
  if (addresses.empty()) {
    return Error(ErrorCode::kProtocol, settings.job_folder + "/endpoints names no address");
  }
  const auto first = supervisor::parse_tcp_endpoint(
      endpoint_text(settings.launch_address, addresses.front().port()));
  if (first) {
    place.is_local = first->address().is_loopback();
    addresses.insert(addresses.begin(), *first);
  }
  const auto chosen = choose_address(addresses, end, stop);
  if (!chosen) return chosen.error();
  place.endpoint = *chosen;
  if (auto taken = take_papers(place, *std::move(folder), settings.node_id); !taken)
    return std::move(taken).error();
  return place;
}

}  // namespace

Result<std::vector<TcpEndpoint>> resolve_patiently(const std::string& text,
                                                   TimePoint end,
                                                   const std::stop_token& stop) {
  while (true) {
    auto addresses = resolve_endpoint(text, kLookUp);
    const bool may_come = !addresses && addresses.error().code() == ErrorCode::kRendezvousTimeout;
    if (!may_come || stop.stop_requested() || SteadyClock().now() >= end) return addresses;
    std::this_thread::sleep_for(kTryAgain);
  }
}

Result<MeetingPlace> with_papers(const ElasticSettings& settings) {
  MeetingPlace place;
  place.is_open = settings.insecure && settings.token_file.empty();
  if (place.is_open) {
    place.token_key =
        agent::token_key(settings.job);  // a node of another --rdzv_id is none of this job
  } else {
    auto token = agent::read_token(settings.token_file);
    if (!token) return std::move(token).error();
    place.token_key = agent::token_key(*token);
  }
  if (settings.insecure) return place;
  auto files = agent::tls_files_in(settings.tls_dir);
  if (!files) return std::move(files).error();
  place.tls = *std::move(files);
  return place;
}

std::optional<Error> find_exposure(const MeetingPlace& place, const ElasticSettings& settings) {
  if (!settings.insecure || place.is_open || place.is_local) return std::nullopt;
  return Error(ErrorCode::kInvalidArgument,
               launcher::spelled("rdzv_insecure", settings.program) +
                   " is for loopback addresses, and the endpoint is " + settings.endpoint,
               "make certificates with `accel-agent init-tls` and give " +
                   launcher::spelled("rdzv_tls_dir", settings.program));
}

Result<MeetingPlace> find_meeting_place(const ElasticSettings& settings,
                                        const std::stop_token& stop) {
  const TimePoint end = SteadyClock().now() + std::chrono::seconds(settings.join_timeout_seconds);
  switch (settings.meeting) {
    case Meeting::kHostNode:
      return make_place(settings);
    case Meeting::kNode:
      return find_host_node(settings, end, stop);
    default:
      return find_endpoint(settings, end, stop);
  }
}

bool may_follow(const std::string& leader, bool is_insecure, bool is_open) {
  const auto endpoint = supervisor::parse_tcp_endpoint(leader);
  return endpoint && (!is_insecure || is_open || endpoint->address().is_loopback());
}

}  // namespace accel::cluster

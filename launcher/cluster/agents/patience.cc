#include "launcher/cluster/agents/patience.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "agent/access/ticket_book.h"
#include "runtime/printable.h"
#include "runtime/write_all.h"

namespace accel::cluster {
namespace {

constexpr std::chrono::seconds kAfterHold{15};
constexpr std::chrono::seconds kDefaultControlLossGrace{
    60};  // as FencePolicy has; docs/internals/rendezvous.md
constexpr int kPauseMs = 100;

// Where each stream goes on after what was copied of it.
class Places {
 public:
  void note(const v1::LogChunk& chunk) {
    v1::LogPlace& place = places_[{chunk.rank(), chunk.stream()}];
    place.set_rank(chunk.rank());
    place.set_stream(chunk.stream());
    place.set_generation(chunk.generation());
    place.set_offset(chunk.offset() + chunk.data().size());
  }
  void give_to(v1::LogReq& request) const {
    request.clear_resume();
    for (const auto& [stream, place] : places_) *request.add_resume() = place;
  }

 private:
  std::map<std::pair<std::uint32_t, int>, v1::LogPlace> places_;
};

Result<void> copy_once(const AgentClient& client,
                       const v1::LogReq& request,
                       Places& places,
                       Patience& patience) {
  auto call = client.begin(AgentClient::Kind::kStream);
  if (!call) return std::move(call).error();
  const auto reader = call->stub->Logs(call->context.get(), request);
  v1::LogChunk chunk;
  while (reader->Read(&chunk)) {
    patience.answered();
    if (!chunk.notice().empty()) {
      std::fprintf(stderr, "accel: %s\n", printable(chunk.notice()).c_str());
      continue;
    }
    if (chunk.dropped() > 0) {
      std::fprintf(stderr,
                   "accel: %llu bytes of rank %u's %s are gone: its log files were rotated\n",
                   static_cast<unsigned long long>(chunk.dropped()),
                   chunk.rank(),
                   chunk.stream() == v1::STREAM_ERR ? "stderr" : "stdout");
    }
    std::string_view output = chunk.data();
    (void)write_all(chunk.stream() == v1::STREAM_ERR ? STDERR_FILENO : STDOUT_FILENO, output);
    places.note(chunk);
  }
  const grpc::Status status = reader->Finish();
  if (status.ok()) return {};
  // An agent that ends cuts its streams.
  if (status.error_code() == grpc::StatusCode::CANCELLED)
    return Error(ErrorCode::kAgentUnreachable, "the agent ended");
  return client.to_error(status);
}

}  // namespace

// A job on one node with hold 0 ends with its agent.
Patience::Patience(const v1::Job& job) : waits_for_agent_(true) {
  const std::chrono::seconds hold(job.hold_seconds());
  limit_ = hold.count() > 0 ? Duration(hold + kAfterHold) : Duration::zero();
  if (job.max_nodes() > 0)
    limit_ = std::max<Duration>(limit_, kDefaultControlLossGrace + kAfterHold);
}

// Refused: the sockets of an agent that starts are open to its users a moment after they are there.
bool Patience::is_worth_it(const Error& error, TimePoint now, std::string& notice) {
  const bool is_coordinator = error.code() == ErrorCode::kCoordinatorLost;
  const bool is_agent =
      error.code() == ErrorCode::kAgentUnreachable || error.code() == ErrorCode::kAgentRefused;
  // While a coordinator is waited for, the agent may be the one that is restarted.
  const bool is_waiting = gives_up_at_ != TimePoint::max();
  const bool is_away = is_coordinator || (is_agent && waits_for_agent_) ||
                       (is_waiting && error.code() == ErrorCode::kAgentUnreachable);
  if (!is_away) return false;
  if (!is_waiting) gives_up_at_ = now + limit_;
  if (now >= gives_up_at_) return false;
  if (is_coordinator && !is_told_) {
    is_told_ = true;
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(gives_up_at_ - now).count();
    notice = "waits up to " + std::to_string(seconds) + " s for a coordinator: " + error.message();
  }
  return true;
}

bool Patience::try_again(const Error& error) {
  std::string notice;
  const bool is_worth = is_worth_it(error, clock_.now(), notice);
  if (!notice.empty()) std::fprintf(stderr, "accel: %s\n", printable(notice).c_str());
  if (is_worth) ::poll(nullptr, 0, kPauseMs);
  return is_worth;
}

void Patience::answered() {
  gives_up_at_ = TimePoint::max();
  is_told_ = false;
}

Result<v1::Job> submit_patiently(const AgentClient& client,
                                 const v1::JobSpec& spec,
                                 Patience patience) {
  v1::StartReq request;
  *request.mutable_spec() = spec;
  request.set_request_id(agent::to_hex(agent::random_bytes(16)));
  return call_patiently(client, &v1::Control::Stub::StartJob, request, patience);
}

Result<void> copy_logs(const AgentClient& client, v1::LogReq request, Patience patience) {
  Places places;
  while (true) {
    places.give_to(request);
    auto copied = copy_once(client, request, places, patience);
    if (copied || !patience.try_again(copied.error())) return copied;
  }
}

}  // namespace accel::cluster

// Fuzzes what arrives by gRPC after Protobuf has read it, without gRPC: the first byte picks the handler.
//
//   0  AgentMsg ...     agents that may say anything, to a coordinator with two jobs
//   1  CoordMsg ...     a coordinator that may say anything, to an agent
//   2  JobSpec          a job that somebody asks for: checked, made into the shim's, described
//   3  records          what a journal or etcd hands to the coordinator that takes over
//
// 0, 1 and 3 are scripts: a byte whose two low bits name the connection or the kind of the record (0x80: it is
// lost; 0x40: half a second goes by; 0x20: the disk answers), two bytes for the length, then the message. Nothing may
// crash or grow beyond its bounds, and what was understood must be the same after one more trip over the wire.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "accel/v1/rendezvous.pb.h"
#include "agent/coordinator/decisions/coordinator.h"
#include "agent/coordinator/member/member.h"
#include "agent/coordinator/state/record_text.h"
#include "agent/jobs/job_request.h"
#include "agent/rendezvous/job_specs.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/wire.h"

namespace {

using namespace accel;
using namespace accel::agent;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Piece {
  std::uint8_t head = 0;
  std::string_view body;
};

std::vector<Piece> cut(std::string_view script) {
  std::vector<Piece> pieces;
  while (script.size() >= 3) {
    const std::size_t length =
        static_cast<std::uint8_t>(script[1]) | static_cast<std::uint8_t>(script[2]) << 8;
    const std::string_view body = script.substr(3, length);
    pieces.push_back({static_cast<std::uint8_t>(script[0]), body});
    script.remove_prefix(3 + body.size());
  }
  return pieces;
}

template <typename Wire>
bool parse(Wire& message, std::string_view bytes) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

// What this build understood and says again, it understands as the same.
template <typename Message>
void require_stable(const Message& understood) {
  const auto wire = to_proto(understood);
  const auto again = from_proto(wire);
  require(again.has_value());
  require(to_proto(*again).SerializeAsString() == wire.SerializeAsString());
}

JobDescription describe(const std::string& name, int nodes) {
  JobDescription job;
  job.job_id = job.job_uuid = name;
  job.min_nodes = nodes;
  job.max_nodes = nodes;
  return job;
}

class HostileAgents {
 public:
  HostileAgents() {
    Step founded = found(1, {}, now_);
    state_ = std::move(founded.state);
    take(std::move(founded.actions));
    handle(StartJob{.request_id = "a", .job = describe("job-a", 1)});
    handle(StartJob{.request_id = "b", .job = describe("job-b", 2)});
    answer_disk();
  }

  void run(std::string_view script) {
    for (const Piece& piece : cut(script)) {
      const ConnectionId connection = 1 + (piece.head & 3);
      if ((piece.head & 0x80) != 0) handle(ConnectionLost{connection});
      if ((piece.head & 0x40) != 0) {
        now_ += std::chrono::milliseconds(500);
        handle(Tick{});
      }
      if ((piece.head & 0x20) != 0) answer_disk();
      v1::AgentMsg message;
      if (!parse(message, piece.body)) continue;
      const auto understood = from_proto(message);
      if (!understood) continue;
      require_stable(*understood);
      handle(FromAgent{.connection = connection, .message = *understood});
    }
  }

 private:
  void handle(decltype(Event::what) what) {
    const bool is_tick = std::holds_alternative<Tick>(what);
    Step next = step(std::move(state_), {.at = now_, .chance = 0.5, .what = std::move(what)});
    state_ = std::move(next.state);
    take(std::move(next.actions));
    require(state_.jobs.size() <= 2 && state_.epoch == 1);
    require(!is_tick || next_wake(state_) > now_);
  }

  void take(Actions actions) {
    for (const Action& action : actions) {
      if (const auto* persist = std::get_if<Persist>(&action)) tickets_.push_back(persist->ticket);
      if (const auto* send = std::get_if<Send>(&action)) require_stable(send->message);
    }
  }

  void answer_disk() {
    while (!tickets_.empty()) {
      const std::uint64_t ticket = tickets_.back();
      tickets_.pop_back();
      handle(Persisted{.ticket = ticket, .ok = true});
    }
  }

  TimePoint now_{std::chrono::hours(1)};
  State state_;
  std::vector<std::uint64_t> tickets_;
};

class HostileCoordinator {
 public:
  HostileCoordinator() {
    state_.node.node_id = "here";
    state_.session_id = "session";
    handle(Connected{});
    handle(WantJob{.join = {.job_uuid = "job-a"}});
  }

  void run(std::string_view script) {
    for (const Piece& piece : cut(script)) {
      if ((piece.head & 0x80) != 0) {
        handle(Disconnected{});
        specs_.clear();
        handle(Connected{});
      }
      if ((piece.head & 0x40) != 0) {
        now_ += std::chrono::milliseconds(500);
        handle(MemberTick{});
      }
      v1::CoordMsg message;
      if (!parse(message, piece.body) || !specs_.complete(message)) continue;
      const auto understood = from_proto(message);
      if (!understood) continue;
      require_stable(*understood);
      handle(FromCoordinator{*understood});
    }
  }

 private:
  void handle(decltype(MemberEvent::what) what) {
    MemberStep next = step(std::move(state_),
                           {.at = now_,
                            .fresh_session = "s" + std::to_string(++num_sessions_),
                            .what = std::move(what)});
    state_ = std::move(next.state);
    for (const MemberAction& action : next.actions) {
      if (const auto* send = std::get_if<SendUp>(&action)) require_stable(send->message);
      if (const auto* park = std::get_if<ParkWorkers>(&action)) {
        require(!park->assign.job->job_uuid.empty());
        answer(
            WorkersParked{.job_uuid = park->assign.job->job_uuid, .generation = park->generation});
      }
      if (const auto* stop = std::get_if<StopWorkers>(&action))
        answer(WorkersGone{.job_uuid = stop->job_uuid, .generation = stop->generation});
    }
    while (depth_ == 0 && !answers_.empty()) {
      ++depth_;
      auto next_answer = std::move(answers_.back());
      answers_.pop_back();
      handle(std::move(next_answer));
      --depth_;
    }
  }

  void answer(decltype(MemberEvent::what) what) {
    if (answers_.size() < 64) answers_.push_back(std::move(what));
  }

  TimePoint now_{std::chrono::hours(1)};
  int num_sessions_ = 0;
  SpecsHeld specs_;
  int depth_ = 0;
  MemberState state_;
  std::vector<decltype(MemberEvent::what)> answers_;
};

void fuzz_job(std::string_view bytes) {
  v1::JobSpec request;
  if (!parse(request, bytes)) return;
  const JobDescription job = describe_job(request);
  require(job.min_nodes >= 0 && job.max_nodes >= job.min_nodes && job.procs_per_node >= 0);
  (void)to_job_spec(job).SerializeAsString();
  if (!check_job_request(request)) return;
  UserAccount user;
  user.name = "somebody";
  user.home = "/";
  user.shell = "/bin/sh";
  std::vector<std::string> scrubbed;
  const LocalPart part{.num_ranks = 2, .world_size = 2};
  const auto spec = make_job_spec(request, part, user, "/tmp/logs", true, scrubbed);
  require(spec.workers.size() == 2);
  for (const auto& variable : spec.env) require(!variable.first.starts_with("LD_"));
}

void fuzz_records(std::string_view script) {
  std::vector<Record> records;
  constexpr const char* kKeys[] = {"epoch", "job/job-a", "node/n1", "job/job-b"};
  for (const Piece& piece : cut(script)) {
    records.push_back({kKeys[piece.head & 3], std::string(piece.body)});
  }
  const TimePoint now{std::chrono::hours(1)};
  auto taken_over = recover(records, recorded_epoch(records) + 1, {}, now);
  if (!taken_over) {
    require(!taken_over.error().message().empty());
    return;
  }
  (void)step(std::move(taken_over->state),
             {.at = now + std::chrono::seconds(10), .chance = 0, .what = Tick{}});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] & 3) {
    case 0:
      HostileAgents().run(rest);
      break;
    case 1:
      HostileCoordinator().run(rest);
      break;
    case 2:
      fuzz_job(rest);
      break;
    default:
      fuzz_records(rest);
      break;
  }
  return 0;
}

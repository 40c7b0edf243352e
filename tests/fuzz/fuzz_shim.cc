// Fuzzes the agent's side of the talk with a shim, which its user may replace: frames of every kind in any order and with any
// content, from a real socket through the real host and link to the job of one node, or to the part of a job over several.
//
// The input is a script of pieces: a byte that says what happens, two for the length, the rest. The first byte of all picks
// the job: even for one node, odd for a part. Nothing may crash; the job ends once, and nothing is told after it; its ranks
// are those that it has; what is read keeps within the budget; what the agent keeps stays bounded, and can be read again.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <fcntl.h>

#include "accel/v1/record.pb.h"
#include "agent/parts/node_workers.h"
#include "agent/shims/accounts_record.h"
#include "agent/shims/heard_workers.h"
#include "agent/shims/job_report.h"
#include "agent/shims/shim_link.h"
#include "runtime/supervisor/metrics/job_accounts.h"
#include "runtime/supervisor/metrics/job_counters.h"
#include "tests/support/fake_system.h"
#include "tests/support/manual_clock.h"

namespace {

using namespace accel;
using namespace accel::supervisor;
using agent::NodeWorkers;
using agent::ShimLink;
using supervisor::DurationTotals;
using supervisor::JobAccounts;
using supervisor::JobCounters;

constexpr int kNumRanks = 4;
constexpr int kFirstRank = 8;
constexpr std::uint64_t kHeld = 3;  // the generation of a part when it is taken over
constexpr pid_t kShim = 4711;

void require(bool condition) {
  if (!condition) std::abort();
}

// Takes values off the front of a piece; zeros when it has ended.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }

  // Mostly a small number, as ranks and generations are; sometimes an end of what the type holds.
  template <typename T = int>
  T number() {
    using Limits = std::numeric_limits<T>;
    const int value = byte();
    if (value < 240) return static_cast<T>(value % 12 - 1);
    constexpr T kEnds[] = {Limits::min(), Limits::max(), static_cast<T>(Limits::max() / 2), 1024};
    return kEnds[value % 4];
  }

  std::string text() {
    const auto size = std::min<std::size_t>(byte(), bytes_.size());
    std::string taken(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return (byte() & 7) == 7 ? std::string(5000, 'x') + taken : taken;
  }

  template <typename Make>
  auto list(Make make) {
    std::vector<decltype(make())> made;
    int size = byte() % 8;
    if (size == 7) size = byte();
    for (int i = 0; i < size; ++i) made.push_back(make());
    return made;
  }

 private:
  std::string_view bytes_;
};

Milliseconds milliseconds_of(Bytes& bytes) {
  return Milliseconds(bytes.number<std::int64_t>());
}

WorkerExit exit_of(Bytes& bytes) {
  WorkerExit exit;
  exit.local_rank = bytes.number();
  exit.global_rank = bytes.number();
  exit.generation = bytes.number();
  exit.cause = static_cast<ExitCause>(bytes.byte() % (static_cast<int>(ExitCause::kHang) + 1));
  exit.exit_code = bytes.number();
  exit.signal = bytes.number();
  exit.step = bytes.number<std::int64_t>();
  exit.seen_at = decltype(exit.seen_at)(bytes.number<std::int64_t>());
  exit.error_number = bytes.number();
  exit.tail = bytes.text();
  exit.detail = bytes.text();
  exit.stage = bytes.text();
  return exit;
}

JobOutcome outcome_of(Bytes& bytes) {
  JobOutcome outcome;
  outcome.success = bytes.byte() % 2 == 0;
  outcome.exit_code = bytes.number();
  outcome.restarts = bytes.number();
  outcome.reason = bytes.text();
  outcome.exits = bytes.list([&] { return exit_of(bytes); });
  if (bytes.byte() % 2 == 1) outcome.first_failure = exit_of(bytes);
  outcome.notices = bytes.list([&] { return bytes.text(); });
  return outcome;
}

WorkerSnapshot worker_of(Bytes& bytes) {
  WorkerSnapshot worker;
  worker.local_rank = bytes.number();
  worker.global_rank = bytes.number();
  worker.pid = bytes.number<std::int64_t>();
  worker.is_alive = bytes.byte() % 4 != 0;
  worker.beats = bytes.byte();
  worker.step = bytes.number<std::uint64_t>();
  worker.silent_for = milliseconds_of(bytes);
  if (bytes.byte() % 2 == 1)
    worker.times = {.steps = bytes.byte(), .total_ns = bytes.number<std::uint64_t>()};
  return worker;
}

Snapshot snapshot_of(Bytes& bytes) {
  constexpr const char* kStates[] = {
      "idle", "parked", "prepared", "running", "stopping", "waiting", "finished", "checking"};
  Snapshot snapshot;
  snapshot.generation = bytes.number();
  snapshot.state = kStates[bytes.byte() % std::size(kStates)];
  snapshot.store_port = bytes.number();
  snapshot.lease_until = BootTime(bytes.number<std::int64_t>());
  snapshot.workers = bytes.list([&] { return worker_of(bytes); });
  snapshot.exits = bytes.list([&] { return exit_of(bytes); });
  return snapshot;
}

HostEvent event_of(int kind, Bytes& bytes) {
  switch (kind) {
    case 0:
      return Hello{.protocol = bytes.number(), .build = bytes.text(), .pid = bytes.number()};
    case 1:
      return GenerationStarted{.generation = bytes.number(),
                               .pids = bytes.list([&] { return bytes.number<std::int64_t>(); })};
    case 2:
      return exit_of(bytes);
    case 3:
      return Restarting{.next_generation = bytes.number(),
                        .delay = milliseconds_of(bytes),
                        .because = exit_of(bytes)};
    case 4:
      return Notice{bytes.text()};
    case 5:
      return outcome_of(bytes);
    case 6:
      return Refused{Error(ErrorCode::kPortInUse, bytes.text(), bytes.text())};
    case 7:
      return Prepared{.generation = bytes.number(), .store_port = bytes.number()};
    case 8:
      return PrepareFailed{.generation = bytes.number(),
                           .error = Error(ErrorCode::kInternal, bytes.text())};
    case 9:
      return GenerationEnded{.generation = bytes.number(),
                             .outcome = outcome_of(bytes),
                             .is_clean = bytes.byte() % 8 != 7};
    case 10:
      return snapshot_of(bytes);
    case 11:
      return Hung{.generation = bytes.number(),
                  .global_rank = bytes.number(),
                  .silent_for = milliseconds_of(bytes),
                  .limit = milliseconds_of(bytes),
                  .silent_ranks = bytes.list([&] { return bytes.number(); })};
    case 12:
      return WorkerStopped{.global_rank = bytes.number(), .pid = bytes.number()};
    case 13:
      return Straggler{.global_rank = bytes.number(), .step_time = milliseconds_of(bytes)};
    default:
      return StoreOpened{.generation = bytes.number(), .store_port = bytes.number()};
  }
}

// ---- the two sides ----

// The shim's end of the socket, on a machine where it is the only process.
struct Peer {
  struct Machine : test::FakeSystem {
    FrameSocket* socket = nullptr;
    int signal_process(int pidfd, int signal) override {
      if (signal == SIGKILL) socket->close();
      return FakeSystem::signal_process(pidfd, signal);
    }
  };
  Machine system;
  std::unique_ptr<WorkerHost> host;
  FrameSocket socket{UniqueFd()};

  Peer() {
    system.socket = &socket;
    system.add_process(kShim, 1, 100);
    auto pair = FrameSocket::make_pair();
    require(pair.has_value());
    socket = std::move(pair->second);
    UniqueFd process = system.open_process(kShim);
    host =
        watch_shim({.job_id = "fuzzed"}, std::move(pair->first), kShim, std::move(process), system);
    say(encode(HostEvent(Hello{})));
  }

  void say(const std::string& frame) {
    if (socket.is_open()) (void)socket.send(frame);
  }
};

class OneNodeJob {
 public:
  OneNodeJob() {
    accounts_.begin(clock_.now());
    counters_.begin(clock_.now());
    link_.open(std::move(peer_.host),
               {.on_event = [this](const HostEvent& event) { hear(event); },
                .on_lost =
                    [this](const Error& error) {
                      agent::show_loss(job_, error);
                      end();
                    }},
               kNumRanks);
  }

  void say(const std::string& frame) { peer_.say(frame); }

  void order(Bytes& bytes) {
    if (bytes.byte() % 2 == 0) return clock_.advance(std::chrono::milliseconds(bytes.byte()));
    is_stopping_ = true;
    accounts_.ask_to_stop(clock_.now());
    counters_.ask_to_stop(clock_.now());
    link_.request(Stop{.mode = static_cast<StopMode>(bytes.byte() % 3)});
  }

  void run(boost::asio::io_context& loop) {
    loop.restart();
    loop.poll();
    const auto refilled =
        std::chrono::floor<std::chrono::milliseconds>(clock_.now() - began_).count() *
        ShimLink::kUnitsEach / 1000;
    require(num_heard_ <= ShimLink::kBurst + refilled + 1);
    require(num_recorded_ * ShimLink::kRecordUnits <=
            ShimLink::kBurst + refilled + ShimLink::kRecordUnits);
  }

 private:
  void hear(const HostEvent& event) {
    require(!has_ended_);
    ++num_heard_;
    accounts_.hear(event, clock_.now());
    counters_.hear(event, clock_.now(), totals_);
    if (const auto* started = std::get_if<GenerationStarted>(&event)) {
      ++num_recorded_;
      agent::show_started(job_, *started, is_stopping_);
    } else if (const auto* snapshot = std::get_if<Snapshot>(&event)) {
      ++num_recorded_;
      agent::show_standing(job_, *snapshot, is_stopping_);
    } else if (const auto* exit = std::get_if<WorkerExit>(&event)) {
      require(exit->local_rank >= 0 && exit->local_rank < kNumRanks);
      agent::show_exit(job_, *exit);
    } else if (const auto* notice = std::get_if<Notice>(&event)) {
      agent::add_to_report(job_, notice->text);
    } else if (const auto* outcome = std::get_if<JobOutcome>(&event)) {
      agent::show_outcome(job_, *outcome, is_stopping_);
      return end();
    }
    check();
  }

  void end() {
    require(!std::exchange(has_ended_, true));
    accounts_.close(clock_.now());
    link_.close();
    check();
  }

  void check() {
    require(job_.workers_size() <= kNumRanks && counters_.sights().size() <= kNumRanks);
    require(job_.report().size() <= agent::kMostReportBytes);
    v1::JobRecord record;
    *record.mutable_job() = job_;
    *record.mutable_accounts() = agent::to_record(accounts_);
    require(v1::JobRecord().ParseFromString(record.SerializeAsString()));
  }

 public:
  boost::asio::io_context loop;

 private:
  Peer peer_;
  test::ManualClock clock_;
  const TimePoint began_ = clock_.now();
  ShimLink link_{loop, clock_};
  v1::Job job_;
  JobAccounts accounts_;
  JobCounters counters_;
  DurationTotals totals_;
  bool is_stopping_ = false;
  bool has_ended_ = false;
  std::int64_t num_heard_ = 0;
  std::int64_t num_recorded_ = 0;
};

class PartOfAJob {
 public:
  PartOfAJob() {
    workers_.adopt(std::move(peer_.host),
                   {.generation = kHeld,
                    .hosts_store = true,
                    .first_rank = kFirstRank,
                    .num_ranks = kNumRanks});
  }

  void say(const std::string& frame) { peer_.say(frame); }

  void order(Bytes& bytes) {
    const int what = bytes.byte() % 8;
    const auto generation = static_cast<std::uint64_t>(std::max(0, bytes.number<int>() % 100));
    if (what == 0 && workers_.has_shim()) {
      agent::ParkWorkers park;
      park.generation = std::max(generation_, generation) + 1;
      park.assign.first_rank = kFirstRank;
      park.assign.num_ranks = kNumRanks;
      begin(park.generation);
      workers_.park(park, {});
    } else if (what == 1) {
      workers_.release({.job_uuid = "u", .generation = generation, .store_endpoint = bytes.text()});
    } else if (what == 2) {
      ++num_stops_;
      workers_.stop({.job_uuid = "u", .generation = generation});
    } else if (what == 3) {
      ++num_finishes_;
      workers_.finish();
    } else if (what == 4) {
      workers_.ask_steps();
    } else if (what == 5) {
      workers_.kill();
    } else if (what == 6) {
      workers_.dump_stacks();
    }
  }

  void run(boost::asio::io_context& loop) {
    loop.restart();
    loop.poll();
    require(workers_.pids().size() <= kNumRanks);
  }

 private:
  void begin(std::uint64_t generation) {
    generation_ = generation;
    exits_.clear();
    num_gone_ = 0;
    num_stops_ = 0;
  }

  void hear_exit(const agent::WorkerExited& exited) {
    require(exited.generation == generation_);
    require(exited.exit.local_rank >= 0 && exited.exit.local_rank < kNumRanks);
    require(exits_.insert(exited.exit.local_rank).second);
  }

  // Each order to stop is answered; else a generation ends once.
  void hear_end(const agent::WorkersGone& gone) {
    if (gone.generation == generation_) require(++num_gone_ <= 1 + num_stops_);
  }

  void hear_steps(const agent::StepsMade& steps) {
    require(steps.ranks.size() <= kNumRanks && steps.stalled_ranks.size() <= kNumRanks);
    for (const int rank : steps.stalled_ranks)
      require(rank >= kFirstRank && rank < kFirstRank + kNumRanks);
  }

 public:
  boost::asio::io_context loop;

 private:
  Peer peer_;
  std::uint64_t generation_ = kHeld;
  std::set<int> exits_;
  int num_gone_ = 0;
  int num_stops_ = 0;
  int num_finishes_ = 0;
  int num_finished_ = 0;
  bool is_adopted_ = false;
  NodeWorkers workers_{
      loop,
      {.job_uuid = "u", .address = "10.0.0.1"},
      {.on_parked = [](const agent::WorkersParked&) {},
       .on_exited = [this](const agent::WorkerExited& exited) { hear_exit(exited); },
       .on_gone = [this](const agent::WorkersGone& gone) { hear_end(gone); },
       .on_steps = [this](const agent::StepsMade& steps) { hear_steps(steps); },
       .on_notice = [](const std::string&) {},
       .on_finished = [this] { require(++num_finished_ <= num_finishes_); },
       .on_adopted =
           [this](const agent::AdoptedGeneration&) { require(!std::exchange(is_adopted_, true)); },
       .on_caught_up = [] {}}};
};

template <typename Job>
void play(std::string_view script) {
  Job job;
  std::string last;
  while (script.size() >= 3) {
    const auto head = static_cast<std::uint8_t>(script[0]);
    const std::size_t length =
        static_cast<std::uint8_t>(script[1]) | static_cast<std::uint8_t>(script[2]) << 8;
    const std::string_view body = script.substr(3, length);
    script.remove_prefix(3 + body.size());
    Bytes bytes(body);
    const int kind = head & 31;
    if (kind < 16) {
      last = encode(event_of(kind, bytes));
      job.say(last);
    } else if (kind == 16) {
      job.say(std::string(body));
    } else if (kind == 17) {
      for (int i = 2 * bytes.byte(); i > 0; --i) {
        job.say(last);
        job.run(job.loop);
      }
    } else {
      job.order(bytes);
    }
    if (head & 32) job.run(job.loop);  // else with what follows
  }
  job.run(job.loop);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view script(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    play<OneNodeJob>(script);
  } else {
    play<PartOfAJob>(script);
  }
  return 0;
}

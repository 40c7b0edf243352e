// NodeWorkers: the workers of one job on this node, through a shim whose generations the owner drives.
//
//   none --park--> preparing --Prepared--> parked --release--> running --all ended, or stop--> over --park--> ...
//     '--adopt(): where the shim stands, then what nobody heard, as if it happened now--^
//
// A shim that does not end what it was told to end is killed: then it is over as well (shim_link.h). What a lost shim left
// may be out of sight, where there are no cgroups and no right to read its tags: then its generation is not called gone.
//
// Threads:  the one that runs the io_context; starting the shim waits for its exec.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "agent/coordinator/member/member.h"
#include "agent/coordinator/member/progress.h"
#include "agent/shims/shim_link.h"
#include "runtime/supervisor/owner/worker_host.h"

namespace accel::agent {

struct NodeWorkersOptions {
  JobUuid job_uuid;
  supervisor::JobSpec
      spec;  // of this node, with its local workers; ranks and world come with each generation
  supervisor::ShimHostOptions shim;
  std::string address;           // how other nodes reach this one: where the store listens
  std::uint16_t store_port = 0;  // 0: any free one
};

// What the agent before this one had its shim do last.
struct HeldGeneration {
  std::uint64_t generation = 0;
  bool hosts_store = false;
  int first_rank = 0;
  int num_ranks = 1;  // here
};

// Where the shim of a held generation stood when it was taken over.
struct AdoptedGeneration {
  bool is_prepared =
      false;  // on_parked follows; else something ran, and on_gone follows if it does not any more
  std::optional<TimePoint> lease_until;
};

class NodeWorkers {
 public:
  struct Handlers {
    std::function<void(WorkersParked)> on_parked;
    std::function<void(WorkerExited)> on_exited;
    std::function<void(WorkersGone)> on_gone;  // may be without proof
    std::function<void(StepsMade)> on_steps;
    std::function<void(const std::string&)> on_notice;  // a line for people
    std::function<void()> on_finished;                  // after finish()
    // After adopt() and adopt_end(): first of all, and when all that nobody heard was told.
    std::function<void(const AdoptedGeneration&)> on_adopted = {};
    std::function<void()> on_caught_up = {};
    std::function<void(const supervisor::HostEvent&)> on_heard = {};  // each event, before all else
  };
  NodeWorkers(boost::asio::io_context& loop, NodeWorkersOptions options, Handlers handlers);
  ~NodeWorkers();

  // Takes over a shim that outlived its owner. Before anything else.
  void adopt(std::unique_ptr<supervisor::WorkerHost> host, const HeldGeneration& held);
  // Its shim is gone, and left `exits`; of that generation none: nobody knows how they ended.
  // `left`: what of it may still be there.
  struct Left {
    int num_unkillable = 0;
    bool is_proved = true;  // but for these nothing is there
  };
  void adopt_end(const HeldGeneration& held,
                 const std::vector<supervisor::WorkerExit>& exits,
                 const Left& left);

  [[nodiscard]] bool has_shim() const { return shim_.is_open(); }
  // For the next shim. Requires: !has_shim().
  void equip(NodeWorkersOptions options);

  // Answered by on_parked. `members`: numeric addresses that may connect to the store when it is here.
  void park(const ParkWorkers& order, std::vector<std::string> members);
  // Hard fencing: what runs of this generation may run on.
  void renew(const RenewLease& renewal);
  // Requires: parked for this generation.
  void release(const ReleaseWorkers& order);
  // Answered by on_gone, also when there is nothing.
  void stop(const StopWorkers& order);
  // Where the ranks stand; answered by on_steps when something runs.
  void ask_steps();
  // Asks what runs here to write its stacks.
  void dump_stacks();
  // No generation follows; answered by on_finished.
  void finish();
  // SIGKILL to what runs, now.
  void kill();

  [[nodiscard]] const std::vector<std::int64_t>& pids() const { return pids_; }
  // Of the last generation that ended here.
  [[nodiscard]] const std::optional<supervisor::JobOutcome>& outcome() const { return outcome_; }

 private:
  Result<void> start_host();
  void watch(std::unique_ptr<supervisor::WorkerHost> host);
  void on_event(const supervisor::HostEvent& event);
  void lose_shim(const Error& error);
  void expect_end();  // of the shim
  void end_generation(const Left& left);
  // `is_of_job`: what the shim says, or may be its user's doing; it says nothing about the node.
  void park_failed(const char* check, const std::string& why, bool is_of_job);
  void say_parked(int generation, int store_port);
  void take_up(const HeldGeneration& held);
  void begin_from(const supervisor::Snapshot& snapshot);
  void end_as_told(const supervisor::GenerationEnded& ended);
  void tell_steps(supervisor::Snapshot snapshot);
  void catch_up(const supervisor::Snapshot& snapshot);
  void end_catching_up();
  void tell_missing(const std::vector<supervisor::WorkerExit>& exits);
  void tell_exit(supervisor::WorkerExit exit);
  void tell_lost(ErrorCode why);
  void end_shim(const supervisor::JobOutcome& outcome);

  boost::asio::io_context& loop_;
  NodeWorkersOptions options_;
  Handlers handlers_;
  ShimLink shim_;
  std::uint64_t generation_ = 0;
  std::optional<std::uint64_t> unproved_;  // the last generation that ended without proof
  bool is_over_ = true;                    // nothing of generation_ is here
  bool hosts_store_ = false;
  int first_rank_ = 0;
  int num_ranks_ = 0;              // here
  bool is_finishing_ = false;      // finish() was called
  int num_snapshots_awaited_ = 0;  // of a shim that is being taken over: two, then none
  std::set<int> told_;             // local ranks of generation_ whose ends were told
  TimePoint park_began_{};
  ProgressWatch progress_;
  std::uint64_t renewed_generation_ = 0;
  TimePoint renewed_until_{};
  std::optional<TimePoint> lease_until_;  // of generation_; none: it needs no lease
  int shim_protocol_ = supervisor::kProtocolVersion;
  std::string shim_build_;
  std::vector<std::int64_t> pids_;
  std::optional<supervisor::JobOutcome> outcome_;
};

}  // namespace accel::agent

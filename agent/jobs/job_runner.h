// JobRunner: the jobs of this node, each under a shim of its own.
//
//   pending --the shim's first generation--> running --somebody asks--> stopping
//      |                                        |                          |
//      '------------- the outcome: succeeded, failed or cancelled <--------'
//
// A shim holds: when this process ends, for whatever reason, its workers go on for `hold`. recover() of the next agent
// reads the records of this one (JobFolder) and takes the shims over (ShimAdopter).
//
// Threads:  the one that runs the io_context; start() waits for the shim's exec, nothing else blocks.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "accel/v1/control.pb.h"
#include "agent/access/user_account.h"
#include "agent/jobs/job_folder.h"
#include "agent/shims/job_cgroups.h"
#include "agent/shims/shim_adopter.h"
#include "runtime/clock.h"
#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/metrics/job_timeline.h"
#include "runtime/supervisor/metrics/ledger.h"
#include "runtime/supervisor/owner/worker_host.h"

namespace accel::agent {

struct JobRunnerOptions {
  std::string log_dir;        // <log_dir>/<uid> belongs to the user
  bool changes_user = false;  // the agent is root: shims get the rights of their users
  int max_jobs = 64;          // in all; an eighth is for root and the agent's own user
  int max_jobs_each = 0;      // of one user; 0: as many as in all
  int keep_finished = 256;
  std::string shim_path;              // empty: as start_shim()
  std::string node_id;                // ACCEL_NODE_ID of what the jobs start
  std::string state_dir;              // the records are below it
  std::string runtime_dir;            // the shims' sockets are below it, a folder for each user
  std::chrono::milliseconds hold{0};  // how long shims wait for the next agent; 0: not at all
  bool adopts_damaged = true;         // jobs whose record cannot be read: taken over, else ended
  std::function<void(const std::string&)> log;
  JobCgroups* cgroups = nullptr;  // one for each shim; empty: none
  supervisor::DurationTotals* totals =
      nullptr;  // what took how long, of all jobs; empty: not counted
  std::function<void(const v1::Job&, const supervisor::HostEvent&)> on_heard =
      {};  // each event of a shim, before the job changes by it
};

class JobRunner {
 public:
  // `on_change` is called after each change of a job; the job may be read, not removed, in it.
  JobRunner(boost::asio::io_context& context,
            JobRunnerOptions options,
            std::function<void(const v1::Job&)> on_change);
  // Jobs that are held go on; all others are killed.
  ~JobRunner();
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

  // Opens the records, and begins to take over the jobs of the agent before this one: they are there at once, as they
  // were then, and change as their shims are found. Call it before anything else. Errors  kFileIo, kShimState.
  [[nodiscard]] Result<void> recover();

  // Starts a job on this node alone. A request_id that `user` gave before starts nothing: the job of then.
  // Requires: check_job_request(), and a user whom the policy allows.
  // Errors  kInvalidArgument (the user has a job of this id), kAgentRefused (too many jobs, draining), kSpawnFailed, kShimMissing.
  [[nodiscard]] Result<const v1::Job*> start(v1::JobSpec request,
                                             const UserAccount& user,
                                             const std::string& request_id);

  // nullptr when unknown.
  [[nodiscard]] const v1::Job* find(const std::string& uuid) const;
  // The job that its user has named so.
  [[nodiscard]] const v1::Job* find(const std::string& job_id, uid_t user) const;
  [[nodiscard]] std::vector<const v1::Job*> all() const;

  // Where its time went, until now.
  [[nodiscard]] supervisor::LedgerState ledger_of(const v1::Job& job) const;

  [[nodiscard]] const supervisor::JobCounters& counters_of(const v1::Job& job) const;
  // What happened to it, as far as this agent heard.
  [[nodiscard]] const supervisor::JobTimeline& timeline_of(const v1::Job& job) const;
  // Asks where its workers stand: counters_of() has it once the shim has answered.
  void look_at(const v1::Job& job);
  // The same of all jobs; `done` when all shims have answered that do.
  void look(std::function<void()> done);

  // The folder below which the job's files are; see LogLayout.
  [[nodiscard]] std::string log_folder_of(const v1::Job& job) const;
  // JobSpec.tracking_dir; empty: nobody said.
  [[nodiscard]] std::string tracking_dir_of(const v1::Job& job) const;
  // How many workers it has, or asks for while none has started. At least 1.
  [[nodiscard]] int num_ranks_of(const v1::Job& job) const;

  // Nothing when the job has ended. The second time it means SIGKILL. A grace counts when it is shorter than the job's own.
  // The stop is on the disk before the shim hears of it: should this agent end in between, the next one tells the shim.
  void stop(const std::string& uuid, const supervisor::Stop& stop);
  // Whether another stop would mean SIGKILL. False when it has ended.
  [[nodiscard]] bool is_asked_to_stop(const v1::Job& job) const;
  void dump_stacks(const std::string& uuid);
  // Sends `signal` to the workers. Errors  kJobUnknown.
  [[nodiscard]] Result<void> signal(const std::string& uuid, int signal);
  void stop_all(supervisor::StopMode mode);

  void set_draining(bool draining) { is_draining_ = draining; }
  [[nodiscard]] bool is_draining() const { return is_draining_; }
  [[nodiscard]] int num_running() const;
  // Workers of the jobs that run: each takes a slot of the node.
  [[nodiscard]] int slots_taken() const;
  // Whether every job that runs would outlive this process.
  [[nodiscard]] bool holds_all() const;

 private:
  struct Entry;

  Result<supervisor::JobSpec> make_spec(const v1::JobSpec& request,
                                        const UserAccount& user,
                                        v1::JobRecord& record) const;
  Result<void> launch(Entry& made, const supervisor::JobSpec& spec, const UserAccount& user);
  void remove_cgroup(const Entry& entry) const;
  Entry* entry(const std::string& uuid);
  [[nodiscard]] const Entry* entry(const std::string& uuid) const;
  void watch(Entry& entry, std::unique_ptr<supervisor::WorkerHost> host);
  void order_stop(Entry& entry);
  void limit_stop(Entry& entry);
  void on_event(Entry& entry, const supervisor::HostEvent& event);
  void look_for_steps();
  static void look_at(Entry& entry);
  void tell_looks();
  void changed(Entry& entry);
  void write_record(Entry& entry);
  void end(Entry& entry, const supervisor::JobOutcome& outcome);
  void end(Entry& entry, const Error& error);
  void conclude(Entry& entry);
  void forget_oldest();
  [[nodiscard]] static int num_ranks(const Entry& entry);
  [[nodiscard]] static int most_ranks(const Entry& entry);
  [[nodiscard]] Result<void> check_room(const UserAccount& user) const;

  // job_recovery.cc
  void adopt(Entry& entry);
  void take_over(Entry& entry, ShimAdopter::Found found);
  void take_over_stop(Entry& entry);
  void recover_damaged(const JobFolder::Damaged& damaged);
  void log(const std::string& line) const;

  boost::asio::io_context& context_;
  JobRunnerOptions options_;
  std::function<void(const v1::Job&)> on_change_;
  std::list<std::unique_ptr<Entry>> entries_;  // in the order of their starts
  std::map<std::string, Entry*> by_request_;
  std::optional<JobFolder> folder_;
  bool is_draining_ = false;
  SteadyClock clock_;
  boost::asio::steady_timer look_;
  bool is_looking_ = false;
  std::vector<std::function<void()>> looks_;  // that wait for shims
  ShimAdopter adopter_;  // the last: its threads end before what they were asked for
};

}  // namespace accel::agent

// WorkerServices: what the workers of a generation get besides their processes.
//
// The store (a new one per generation), each worker's descriptors 0, 1, 2 with the logs behind them, its
// channel, and the environment that tells it of all three. The supervisor says when; here the three meet.
//
// Threads:  the one that runs the io_context.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/supervisor/kernel/private_folder.h"
#include "runtime/supervisor/logs/log_router.h"
#include "runtime/supervisor/protocol/frames.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/supervisor/store/store_server.h"
#include "runtime/supervisor/watch/channel_server.h"

namespace accel::supervisor {

// What one spawn needs; the descriptors are closed here once the child has its own.
struct PreparedWorker {
  SpawnRequest request;
  WorkerStdio stdio;
  ChannelEnds channel;
};

// What is special about one generation.
struct GenerationPlan {
  int number = 0;
  int restart_count = 0;
  std::optional<StorePolicy> store;  // std::nullopt: it is on another node, or there is none
  bool keeps_store = false;          // the one that open_store() opened for it
};

struct ServiceOptions {
  pid_t owner = 0;                   // for job control of the terminal
  pid_t owner_group = 0;             // its process group, for a worker that shares the terminal
  std::optional<rlimit> open_files;  // SpawnRequest::open_files
  std::function<void(const std::string&)> notice;       // something the user should read
  std::function<void(const CheckpointCommit&)> commit;  // a checkpoint is complete
};

class WorkerServices {
 public:
  WorkerServices(boost::asio::io_context& context, const JobSpec& spec, ServiceOptions options);
  ~WorkerServices();

  // Errors  those of LogRouter::start().
  [[nodiscard]] Result<void> start();

  // Opens a store before its generation begins; the one of the generation before ends.
  // Errors  those of StoreServer::listen().
  [[nodiscard]] Result<void> open_store(StorePolicy policy);

  // Ends what the generation before had, and opens the store of the next one.
  // Errors  those of StoreServer::listen().
  [[nodiscard]] Result<void> begin_generation(GenerationPlan plan);

  // From the next generation on local rank k is global rank `first_rank` + k.
  void renumber(int first_rank);

  // Where workers find the store; port 0: the one that is here.
  void use_store_at(const std::string& address, std::uint16_t port);

  // Ends the store and the channels of the current generation.
  void end_generation();

  // Errors  kSpawnFailed: no descriptors are left.
  [[nodiscard]] Result<PreparedWorker> prepare(const WorkerSpec& worker);

  // What the checks before a generation have in common.
  [[nodiscard]] SpawnRequest prepare_checks() const;

  // Takes what is left in the worker's pipes, then calls `done` on the supervisor's thread.
  void worker_ended(int local_rank, std::function<void()> done);

  // The last words of a worker, after worker_ended() is done: tail and last error.
  void fill_in_texts(WorkerExit& exit) const;

  // Passes on what the worker has said since the last call that an operator should know.
  void pass_on_notices(int global_rank);

  // Where the worker's TORCHELASTIC_ERROR_FILE belongs; empty when no folder could be had.
  [[nodiscard]] std::string error_file(int local_rank) const;

  // 0 without a store.
  [[nodiscard]] int store_port() const;

  // Writes the stacks of a worker beside its logs (stacks.log), when there is a log folder.
  void write_stacks(int local_rank, const std::string& stacks);

  // What the worker reported last about its progress.
  [[nodiscard]] std::optional<HeartbeatSample> heartbeat(int global_rank) const;

  // The collective calls of those workers of this node that have told of any, in the order of ranks.
  [[nodiscard]] std::vector<RankCalls> calls() const;

  // Where the time of the worker's steps went, if it has measured it.
  [[nodiscard]] std::optional<StepTimes> step_times(int global_rank) const;
  // Tells it in a notice.
  void tell_step_times(int global_rank);

  // Whether a worker of this generation reported that it got on.
  [[nodiscard]] bool made_progress() const;

  [[nodiscard]] bool handles_preemption(int global_rank) const;
  // The step at which it saved for its preemption, once it says so.
  [[nodiscard]] std::optional<std::uint64_t> saved_step(int global_rank) const;
  void ask_for_preemption();
  void ask_for_stacks();
  void resize_window(int rows, int columns);
  // `shown` is called with the request's number on the context, once the terminal has it.
  void show_status(const ShowStatus& status, std::function<void(std::uint64_t)> shown);
  // ConsolePolicy::stop_by_input: all workers see the end of their input.
  void end_inputs();

  // While the workers are stopped their silence is nobody's fault.
  void suspend();
  void resume();

  // Ends store and channels, and begins to write the logs out. No worker may be left. `on_change` comes
  // on the supervisor's thread when it is worth looking at is_drained() again.
  void begin_close(std::function<void()> on_change);
  [[nodiscard]] bool is_drained() const;
  [[nodiscard]] std::uint64_t drain_progress() const;
  // Gives up on output that is not written yet, with a notice that says `why`.
  void end_close(const std::string& why);

 private:
  void make_error_folder();
  void remove_error_folder();
  [[nodiscard]] WorkerIdentity identity_of(const WorkerSpec& worker,
                                           const std::string& channel) const;

  boost::asio::io_context& context_;
  const JobSpec& spec_;
  ServiceOptions options_;
  GenerationPlan plan_;
  std::string store_address_;     // empty: as the spec says
  std::uint16_t store_port_ = 0;  // 0: of the store that is here
  std::unique_ptr<LogRouter> logs_;
  std::optional<PrivateFolder> error_folder_;  // without a log folder
  std::unique_ptr<StoreServer> store_;
  ChannelServer channels_;
};

}  // namespace accel::supervisor

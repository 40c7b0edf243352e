// ChannelServer: the supervisor's side of the worker channels of one job on this node.
//
// Keeps for each running worker the shared page (accel/channel_layout.h) and the socket
// (runtime/channel_frames.h), and for the job the named shared memory that workers asked for. A
// worker can write anything into the page and send anything on the socket: what is read is copied
// first and checked then, no length or offset is used unchecked, descriptors sent to us never reach
// our table, and a worker that does not read its answers loses its socket, not our time.
//
// Threads:  one thread, the one that runs the io_context, which outlives the server.
// Cost:     3 descriptors and 8 KiB of shared memory per worker; one descriptor per named memory.
// Source:   docs/internals/worker_channel.md; tests/unit/supervisor/channel_server_test.cc;
//           tests/fuzz/fuzz_frames.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/channel.h>
#include <accel/channel_layout.h>
#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

// What the child inherits: let both descriptors survive exec under the same numbers, set
// ACCEL_CHANNEL to `env_value`, and close both in the supervisor after the spawn.
struct ChannelEnds {
  UniqueFd memory;
  UniqueFd socket;
  std::string env_value;
};

struct CheckpointCommit {
  int global_rank = 0;
  int generation = 0;
  std::uint64_t step = 0;
  std::string path;
  std::string digest;
  std::string token;
};

struct ChannelOptions {
  std::string job_id;
  std::uint64_t shared_quota_bytes = 0;  // of all named memory; 0: half of the machine's memory
  std::size_t max_shared = 256;          // named pieces
  // Told as frames come in; may be empty. Texts have been made printable.
  std::function<void(int global_rank, const std::string& text)> on_report;
  std::function<void(const CheckpointCommit&)> on_commit;
  std::function<void(int global_rank)> on_bye;
  // A worker's socket was closed for what it sent. At most once per worker and generation.
  std::function<void(int global_rank, const Error&)> on_violation;
};

class ChannelServer {
 public:
  ChannelServer(boost::asio::io_context& context, ChannelOptions options);
  ~ChannelServer();
  ChannelServer(const ChannelServer&) = delete;
  ChannelServer& operator=(const ChannelServer&) = delete;

  // A new channel for this worker; what an earlier generation's channel of it held is gone.
  // Errors  kSpawnFailed with the call and errno that failed.
  [[nodiscard]] Result<ChannelEnds> open(int global_rank, int generation);

  // Sets bits of the worker's request word and wakes it. Nothing for a worker without a channel.
  void request(int global_rank, WorkerRequest request);
  void request_all(WorkerRequest request);

  [[nodiscard]] bool declares(int global_rank, WorkerAbility ability) const;

  // The step at which the worker has saved for its preemption; std::nullopt when it has not said so.
  [[nodiscard]] std::optional<std::uint64_t> saved_step(int global_rank) const;

  // std::nullopt before the first one, and when the worker was caught writing each time it was
  // tried.
  [[nodiscard]] std::optional<HeartbeatSample> heartbeat(int global_rank) const;

  // std::nullopt as heartbeat().
  [[nodiscard]] std::optional<StepTimes> step_times(int global_rank) const;
  [[nodiscard]] std::optional<RankCalls> calls(int global_rank) const;

  // What the worker said last about its own failure; also after its death, until close() or open().
  // Errors  kChannelCorrupt: what is there cannot be an error record.
  [[nodiscard]] Result<std::optional<WorkerError>> last_error(int global_rank) const;

  // Notices since the last call. A worker that wrote faster than we read loses the oldest; of one that goes on and on the last
  // of a hundred says so.
  [[nodiscard]] std::vector<std::string> take_notices(int global_rank);

  // Said BYE.
  [[nodiscard]] bool has_said_bye(int global_rank) const;

  // The newest commit of the job.
  [[nodiscard]] const std::optional<CheckpointCommit>& last_commit() const;

  // Ends one worker's channel (after it was reaped and its error was read).
  void close(int global_rank);

  // Ends all channels and the named memory that is not kept for the job.
  void end_generation();

  [[nodiscard]] std::uint64_t shared_bytes() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the handlers that are in flight
};

}  // namespace accel::supervisor

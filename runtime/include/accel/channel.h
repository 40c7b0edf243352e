// WorkerChannel: connects a worker with the supervisor that started it.
//
// It is two inherited descriptors, ACCEL_CHANNEL=<version>:<memfd>:<socket>. The shared memory holds
// values that change often or must survive the worker (heartbeat, last error, requests); the socket
// carries calls that need an answer (shared memory, checkpoint tokens). Without a supervisor there is no
// channel; training works without it.
//
// Threads:  heartbeat() from one thread at a time; everything else from any thread. Calls on the socket
//           (get_shared(), drop_shared(), commit(), report(), bye()) run one after another.
// Cost:     heartbeat(), step_times() and collective() 10 to 20 ns, requests() 1 to 3 ns; no system call in any. Two
//           descriptors and 8 KiB of shared memory.
// Source:   docs/internals/worker_channel.md; tests/unit/supervisor/channel_server_test.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <accel/env_contract.h>
#include <accel/export.h>
#include <accel/result.h>

namespace accel {

// The phase of the worker, for its observers.
enum class WorkerPhase : std::uint32_t {
  kUnknown,
  kStarting,
  kTraining,
  kEvaluating,
  kSaving,
  kLoading,
  kFinishing,
};

// Requests of the supervisor. A set of bits.
enum class WorkerRequest : std::uint32_t {
  kPreempt = 1,        // save and exit; stays set
  kCheckpointNow = 2,  // save and continue
  kDumpStacks = 4,     // write all stacks to stderr
  kStop = 8,           // exit soon; stays set
};

// The supervisor's requests to this worker: a set of WorkerRequest.
class WorkerRequests {
 public:
  WorkerRequests() = default;
  explicit WorkerRequests(std::uint32_t bits) noexcept : bits_(bits) {}
  // Whether the set has this request.
  [[nodiscard]] bool has(WorkerRequest request) const noexcept {
    return (bits_ & static_cast<std::uint32_t>(request)) != 0;
  }
  [[nodiscard]] bool any() const noexcept { return bits_ != 0; }
  [[nodiscard]] std::uint32_t bits() const noexcept { return bits_; }

 private:
  std::uint32_t bits_ = 0;
};

// Capabilities that a worker declares. A set of bits.
enum class WorkerAbility : std::uint32_t {
  kHandlesPreemption = 1,  // gets no signal on preemption: it polls requests(), saves and exits
};

struct Heartbeat {
  std::uint64_t step = 0;
  std::uint64_t samples = 0;  // since the worker started
  WorkerPhase phase = WorkerPhase::kUnknown;
};

// How the training thread spent its time since the first beat. The rest of the total is computing.
struct StepTimes {
  std::uint64_t steps = 0;
  std::uint64_t total_ns = 0;
  std::uint64_t input_ns = 0;          // waiting for the next batch
  std::uint64_t communication_ns = 0;  // waiting for other ranks in a collective
  std::uint64_t io_ns = 0;             // checkpoints and weights
  std::uint64_t wait_ns = 0;           // barriers

  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

// A named piece of memory that the workers of one generation on this node share. The object unmaps
// and closes it; the supervisor's copy exists until the generation ends.
class ACCEL_EXPORT SharedMemory {
 public:
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  friend class WorkerChannel;
  SharedMemory(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

enum class Keep {
  kGeneration,  // gone when the generation ends
  kJob,         // later generations find it again (in-memory checkpoints)
};

class ACCEL_EXPORT WorkerChannel {
 public:
  // Opens the channel of ACCEL_CHANNEL; the descriptors become close-on-exec. No channel
  // (std::nullopt) when the variable is not set.
  //
  // Errors  kChannelVersion: names both versions. kChannelCorrupt: the value is malformed, or these
  //         are not the supervisor's descriptors (a wrapper closed them, or this is a child
  //         of the worker).
  // Requires: called once in a process.
  [[nodiscard]] static Result<std::optional<WorkerChannel>> open(const EnvLookup& lookup);

  WorkerChannel(WorkerChannel&& other) noexcept;
  WorkerChannel& operator=(WorkerChannel&& other) noexcept;
  ~WorkerChannel();

  void heartbeat(const Heartbeat& beat) noexcept;

  // The times until now. Call it from the thread of heartbeat().
  void step_times(const StepTimes& times) noexcept;

  // A collective call begins. `hash`: of everything that must be the same on all ranks; `text`: the same for people, at most
  // 56 bytes are kept. From one thread at a time.
  void collective(std::uint64_t hash, std::string_view text) noexcept;

  // Records the error with which this worker fails; the supervisor's report shows it. The last call wins; at most
  // 3,816 bytes are kept. Async-signal-safe as long as no other thread is in it.
  void set_error(std::string_view text) noexcept;

  // A warning for the operator; the worker continues. The last 15 are kept, each of at
  // most 232 bytes.
  void notice(std::string_view text) noexcept;

  // kHandlesPreemption: from now on SIGTERM and SIGUSR1 from other senders than the supervisor also request preemption, unless
  // the program handles them itself.
  void declare(WorkerAbility ability) noexcept;

  // Reports that this rank has completed its save on preemption, and at which step. When
  // every rank of a preempted job has reported it, the launcher exits with the requeue code.
  void mark_saved(std::uint64_t step) noexcept;

  [[nodiscard]] WorkerRequests requests() const noexcept;

  // Acknowledges one-time requests (kCheckpointNow, kDumpStacks).
  void done_with(WorkerRequest request) noexcept;

  // Sleeps until the requests differ from `seen` or the time is over; returns the requests.
  [[nodiscard]] WorkerRequests wait_for_requests(WorkerRequests seen,
                                                 std::chrono::milliseconds timeout) const noexcept;

  // Maps the shared memory of that name; the first call creates it, filled with zeros.
  //
  // name   at most 128 of [A-Za-z0-9_.-]
  // Errors kInvalidArgument for the name, or when it exists with another size; kStoreLimit when the
  //        job's quota is used up; kPeerLost when the supervisor does not answer within 10 s.
  [[nodiscard]] Result<SharedMemory> get_shared(std::string_view name,
                                                std::size_t bytes,
                                                Keep keep = Keep::kGeneration);

  // The supervisor drops the shared memory of that name, also if it is kept for the job, and no longer counts its bytes. Processes
  // that have mapped it keep it. Does nothing if there is none. Errors as get_shared().
  [[nodiscard]] Result<void> drop_shared(std::string_view name);

  // Tells the supervisor of a complete checkpoint; this counts as progress for the restart policy.
  // Returns the token of the commit in this job. Errors as get_shared(), and
  // kCheckpointMismatch if the supervisor refuses it because a newer generation of the job has begun.
  [[nodiscard]] Result<std::string> commit(std::uint64_t step,
                                           std::string_view path,
                                           std::string_view digest);

  // One line for the job's record ("loss 0.25"); at most 4,000 bytes. Does not wait for an answer.
  [[nodiscard]] Result<void> report(std::string_view text);

  // Reports that the worker ends on purpose. No destructor calls it: a worker that dies must not seem to end on purpose.
  [[nodiscard]] Result<void> bye();

 private:
  struct State;
  explicit WorkerChannel(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace accel

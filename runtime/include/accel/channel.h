// WorkerChannel: a worker's line to the supervisor that started it.
//
// Two inherited descriptors, named in ACCEL_CHANNEL=<version>:<memfd>:<socket>. The memory carries
// what happens often or must survive the worker (heartbeat, last error, requests); the socket
// carries what needs an answer (shared memory, checkpoint tokens). Without a supervisor there is no
// channel, and nothing here is needed to train.
//
// Threads:  heartbeat() from one thread at a time; everything else from any. What uses the socket
//           (get_shared(), drop_shared(), commit(), report(), bye()) takes turns.
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

// What the worker is doing, for whoever watches it.
enum class WorkerPhase : std::uint32_t {
  kUnknown,
  kStarting,
  kTraining,
  kEvaluating,
  kSaving,
  kLoading,
  kFinishing,
};

// What the supervisor asks for. A set of bits.
enum class WorkerRequest : std::uint32_t {
  kPreempt = 1,        // save and end; stays set
  kCheckpointNow = 2,  // save and go on
  kDumpStacks = 4,     // write all stacks to stderr
  kStop = 8,           // end soon; stays set
};

// What the supervisor asks of this worker: a set of WorkerRequest.
class WorkerRequests {
 public:
  WorkerRequests() = default;
  explicit WorkerRequests(std::uint32_t bits) noexcept : bits_(bits) {}
  // Whether that is asked.
  [[nodiscard]] bool has(WorkerRequest request) const noexcept {
    return (bits_ & static_cast<std::uint32_t>(request)) != 0;
  }
  [[nodiscard]] bool any() const noexcept { return bits_ != 0; }
  [[nodiscard]] std::uint32_t bits() const noexcept { return bits_; }

 private:
  std::uint32_t bits_ = 0;
};

// What a worker can declare about itself. A set of bits.
enum class WorkerAbility : std::uint32_t {
  kHandlesPreemption = 1,  // gets no signal on preemption: it watches requests(), saves and exits
};

struct Heartbeat {
  std::uint64_t step = 0;
  std::uint64_t samples = 0;  // since the worker started
  WorkerPhase phase = WorkerPhase::kUnknown;
};

// Where the time of the thread that trains went, since the first beat: computing is what is left of the total.
struct StepTimes {
  std::uint64_t steps = 0;
  std::uint64_t total_ns = 0;
  std::uint64_t input_ns = 0;          // waiting for the next batch
  std::uint64_t communication_ns = 0;  // waiting for other ranks in a collective
  std::uint64_t io_ns = 0;             // checkpoints and weights
  std::uint64_t wait_ns = 0;           // barriers

  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

// A named piece of memory that the workers of one generation on this node share. Unmapped and
// closed with the object; the supervisor's copy lives until the generation ends.
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
  // Opens the channel that ACCEL_CHANNEL names; the descriptors become close-on-exec. No channel
  // (std::nullopt) when the variable is not set.
  //
  // Errors  kChannelVersion: names both versions. kChannelCorrupt: the value is malformed, or the
  //         descriptors are not what the supervisor gave (a wrapper closed them, or this is a child
  //         of the worker).
  // Requires: called once in a process.
  [[nodiscard]] static Result<std::optional<WorkerChannel>> open(const EnvLookup& lookup);

  WorkerChannel(WorkerChannel&& other) noexcept;
  WorkerChannel& operator=(WorkerChannel&& other) noexcept;
  ~WorkerChannel();

  void heartbeat(const Heartbeat& beat) noexcept;

  // Where the time went until now. From the thread that beats.
  void step_times(const StepTimes& times) noexcept;

  // A collective call begins. `hash`: of everything that all ranks must call alike; `text`: the same for people, of which the first
  // 56 bytes are kept. From one thread at a time.
  void collective(std::uint64_t hash, std::string_view text) noexcept;

  // What makes this worker fail; the supervisor's report shows it. The last call wins; at most
  // 3,816 bytes are kept. Async-signal-safe as long as no other thread is inside it.
  void set_error(std::string_view text) noexcept;

  // Something an operator should know although the worker goes on. The last 15 are kept, each of at
  // most 232 bytes.
  void notice(std::string_view text) noexcept;

  // kHandlesPreemption: from here on SIGTERM and SIGUSR1 of anybody but the supervisor are such a request too, unless
  // the program handles them itself.
  void declare(WorkerAbility ability) noexcept;

  // Says that what this rank has to save when it is preempted is complete, and at which step. When
  // every rank of a preempted job has said so, the launcher ends with the requeue code.
  void mark_saved(std::uint64_t step) noexcept;

  [[nodiscard]] WorkerRequests requests() const noexcept;

  // Says that one-time requests (kCheckpointNow, kDumpStacks) are being carried out.
  void done_with(WorkerRequest request) noexcept;

  // Sleeps until the requests differ from `seen` or the time is over; gives the requests then.
  [[nodiscard]] WorkerRequests wait_for_requests(WorkerRequests seen,
                                                 std::chrono::milliseconds timeout) const noexcept;

  // Maps the shared memory of that name; the first worker to ask creates it, filled with zeros.
  //
  // name   at most 128 of [A-Za-z0-9_.-]
  // Errors kInvalidArgument for the name, or when it exists with another size; kStoreLimit when the
  //        job's quota is used up; kPeerLost when the supervisor does not answer within 10 s.
  [[nodiscard]] Result<SharedMemory> get_shared(std::string_view name,
                                                std::size_t bytes,
                                                Keep keep = Keep::kGeneration);

  // The supervisor forgets the shared memory of that name, kept for the job or not, and its bytes count no more. Who has it
  // mapped keeps it. Nothing when there is none. Errors as get_shared().
  [[nodiscard]] Result<void> drop_shared(std::string_view name);

  // Tells the supervisor of a complete checkpoint; this counts as progress for the restart policy.
  // Returns the token that names the commit in this job. Errors as get_shared(), and
  // kCheckpointMismatch when it refuses because a newer generation of the job has begun.
  [[nodiscard]] Result<std::string> commit(std::uint64_t step,
                                           std::string_view path,
                                           std::string_view digest);

  // One line for the job's record ("loss 0.25"); at most 4,000 bytes. No answer is waited for.
  [[nodiscard]] Result<void> report(std::string_view text);

  // The worker ends on purpose. No destructor says it: a worker that dies must not seem to have.
  [[nodiscard]] Result<void> bye();

 private:
  struct State;
  explicit WorkerChannel(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace accel

// State: the rank of this process, its group, and their settings.
//
// Three handles to state that exists once per process. The first handle sets the state up; later handles refer to the same state:
//
//   PartialState      ranks, device, process group; joins the group from the environment contract
//   AcceleratorState  the same plus the mixed precision
//   GradientState     gradient accumulation, and the position of the active data loader
//
// After reset() every remaining handle throws kNotInitialized.
//
// Threads:  set-up and reset on one thread; the getters on any. Collectives (wait_for_everyone and what
//           is built on it) from one thread at a time, in the same order on every rank.
// Cost:     the first PartialState of several processes connects them: some milliseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <accel/env_contract.h>
#include <accel/export.h>
#include <accel/split.h>
#include <accel/types.h>

namespace accel {

class ProcessGroup;

namespace detail {
class ProcessState;
}

// How the process group is formed, with the names of torch.distributed.init_process_group. Times are above 0, 24 days at most.
struct InitProcessGroupKwargs {
  // Empty: "shm" for the ranks of one node, "two_level" over several, "gloo" with a warning if they cannot share memory. "shm" or
  // "gloo": this backend or an error.
  std::string backend;
  std::chrono::milliseconds timeout{30 * 60 *
                                    1000};  // of one collective; lower it to see hangs sooner
  std::chrono::milliseconds store_timeout{5 * 60 * 1000};  // for all ranks to appear at MASTER_ADDR
  // The identity of this process and the rendezvous, instead of the environment, for ranks without a launcher of accel
  // (accel/rendezvous.h). A later state with another identity throws kInvalidArgument.
  std::optional<WorkerIdentity> identity;
};

struct PartialStateOptions {
  bool cpu = false;  // leave GPUs alone; also set by ACCELERATE_USE_CPU
  InitProcessGroupKwargs init_process_group;
};

// Lets one rank run a block first; the other ranks wait for its end.
class ACCEL_EXPORT TurnGuard {
 public:
  explicit TurnGuard(bool goes_first);
  // Releases the other ranks; throws kPeerLost or kProcessGroup if that fails. During an exception it
  // does nothing: the waiting ranks notice the end of this process.
  ~TurnGuard() noexcept(false);
  TurnGuard(const TurnGuard&) = delete;
  TurnGuard& operator=(const TurnGuard&) = delete;

 private:
  bool goes_first_;
  int exceptions_at_entry_;
};

class ACCEL_EXPORT PartialState {
 public:
  // Reads the environment contract (RANK, WORLD_SIZE, MASTER_ADDR, ... or MPI's variables), unless the options have an identity, and
  // joins the process group. From then on SIGPIPE is ignored, as in Python, unless the program has a handler. So a write to a dead
  // rank is an error and does not end this process. `options` only matter for the first state.
  // Errors  kEnvInvalid, kStoreUnreachable, kProcessGroup, kUnsupported (a device or backend that this build lacks); every rank gets an
  //         error within store_timeout.
  explicit PartialState(const PartialStateOptions& options = {});

  // Whether the state is set up in this process.
  [[nodiscard]] static bool initialized() noexcept;
  // Leaves the process group and resets everything, also GradientState and AcceleratorState.
  static void reset();

  [[nodiscard]] int process_index() const;
  [[nodiscard]] int local_process_index() const;
  [[nodiscard]] int num_processes() const;
  [[nodiscard]] int local_num_processes() const;
  [[nodiscard]] DistributedType distributed_type() const;
  // "shm", "two_level" or "gloo"; empty for one process without a launcher.
  [[nodiscard]] std::string backend() const;
  [[nodiscard]] c10::Device device() const;
  // ACCELERATE_DEBUG_MODE: collectives compare the shapes of all ranks first.
  [[nodiscard]] bool debug() const;
  // Restarts of the job so far; 0 without a supervisor.
  [[nodiscard]] int restart_count() const;
  [[nodiscard]] bool use_distributed() const;
  [[nodiscard]] bool is_main_process() const;
  [[nodiscard]] bool is_local_main_process() const;
  [[nodiscard]] bool is_last_process() const;

  // The group of the operations; for libaccel. nullptr for one process without a launcher. Throws kNotInitialized without a state,
  // and after destroy_process_group().
  [[nodiscard]] static std::shared_ptr<ProcessGroup> process_group();

  // Blocks until every rank has called it. Errors kPeerLost, kProcessGroup.
  void wait_for_everyone() const;
  // Leaves the group; collectives throw kNotInitialized from then on.
  void destroy_process_group();

  // The block after it runs first on the (local) main process, then on all others:
  //   { auto turn = state.main_process_first(); download(); }
  [[nodiscard]] TurnGuard main_process_first() const { return TurnGuard(is_main_process()); }
  [[nodiscard]] TurnGuard local_main_process_first() const {
    return TurnGuard(is_local_main_process());
  }

  // Calls fn() at once, only on the process in the name. Returns its result as an optional.
  template <typename F>
  auto on_main_process(F&& fn) const {
    return call_if(is_main_process(), std::forward<F>(fn));
  }
  template <typename F>
  auto on_local_main_process(F&& fn) const {
    return call_if(is_local_main_process(), std::forward<F>(fn));
  }
  template <typename F>
  auto on_last_process(F&& fn) const {
    return call_if(is_last_process(), std::forward<F>(fn));
  }
  template <typename F>
  auto on_process(int index, F&& fn) const {
    return call_if(process_index() == index || !use_distributed(), std::forward<F>(fn));
  }
  template <typename F>
  auto on_local_process(int local_index, F&& fn) const {
    return call_if(local_process_index() == local_index || !use_distributed(), std::forward<F>(fn));
  }

  // This rank's part of a vector, a tensor (rows) or a map of these; split.h has the rule.
  template <typename T>
  [[nodiscard]] T split_between_processes(const T& inputs, const SplitOptions& options = {}) const {
    return split_for_process(inputs, num_processes(), process_index(), options);
  }

  // Writes the values, separated by spaces, and a newline to stdout, on each node's main process.
  template <typename... Args>
  void print(const Args&... args) const {
    if (!is_local_main_process()) return;
    std::ostringstream line;
    const char* separator = "";
    ((line << separator << args, separator = " "), ...);
    write_line(line.str());
  }

  // The lines that HF Accelerate prints for its state.
  [[nodiscard]] std::string to_string() const;

 private:
  static void write_line(const std::string& line);

  template <typename F>
  static auto call_if(bool chosen, F&& fn) {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      if (chosen) std::forward<F>(fn)();
    } else {
      using Value = std::invoke_result_t<F>;
      return chosen ? std::optional<Value>(std::forward<F>(fn)()) : std::nullopt;
    }
  }
};

ACCEL_EXPORT std::ostream& operator<<(std::ostream& out, const PartialState& state);

struct AcceleratorStateOptions {
  std::optional<PrecisionType> mixed_precision;  // default: ACCELERATE_MIXED_PRECISION, else no
  bool cpu = false;
  bool use_fsdp = false;       // distributed_type() is FSDP when there is a process group
  bool use_deepspeed = false;  // and DEEPSPEED
  std::string ds_config;       // how to_string() ends then; empty: without that line
  InitProcessGroupKwargs init_process_group;
};

class ACCEL_EXPORT AcceleratorState : public PartialState {
 public:
  // Also sets up PartialState. Errors as there, and kInvalidArgument if the state exists with another
  // precision, or with a GPU although `cpu` is set; kUnsupported for fp8.
  explicit AcceleratorState(const AcceleratorStateOptions& options = {});

  // Whether the state is set up in this process.
  [[nodiscard]] static bool initialized() noexcept;
  // Resets only the precision; PartialState::reset() resets everything.
  static void reset();

  [[nodiscard]] PrecisionType mixed_precision() const;
  [[nodiscard]] std::string to_string() const;
};

ACCEL_EXPORT std::ostream& operator<<(std::ostream& out, const AcceleratorState& state);

// How gradients are accumulated. `adjust_scheduler`: the scheduler counts the steps between syncs
// too.
struct GradientAccumulationPlugin {
  int num_steps = 1;
  bool adjust_scheduler = true;
  bool sync_with_dataloader =
      true;                      // the last batch of a loader always syncs and restarts the count
  bool sync_each_batch = false;  // reduce gradients at every batch: less memory, more traffic

  friend bool operator==(const GradientAccumulationPlugin&,
                         const GradientAccumulationPlugin&) = default;
};

// The interface of an active data loader for GradientState.
class ACCEL_EXPORT ActiveDataLoader {
 public:
  virtual ~ActiveDataLoader() = default;
  // Whether it has yielded its last batch.
  [[nodiscard]] virtual bool end_of_dataloader() const = 0;
  // Samples of the last global batch that are not padding; 0: all of them; -1: length unknown.
  [[nodiscard]] virtual std::int64_t remainder() const = 0;
  // The same for this rank's last batch; not set if remainder() is known.
  [[nodiscard]] virtual std::optional<std::int64_t> own_remainder() const { return std::nullopt; }
};

class ACCEL_EXPORT GradientState {
 public:
  GradientState();
  explicit GradientState(const GradientAccumulationPlugin& plugin);

  // Whether the state is set up in this process.
  [[nodiscard]] static bool initialized() noexcept;
  static void reset();

  [[nodiscard]] int num_steps() const;
  [[nodiscard]] bool adjust_scheduler() const;
  [[nodiscard]] bool sync_with_dataloader() const;
  [[nodiscard]] bool sync_each_batch() const;

  // Whether this batch ends an accumulation: gradients are reduced and the optimizer steps.
  [[nodiscard]] bool sync_gradients() const;
  void set_sync_gradients(bool sync) const;

  // The innermost active loader, or nullptr.
  [[nodiscard]] const ActiveDataLoader* active_dataloader() const;
  [[nodiscard]] bool in_dataloader() const { return active_dataloader() != nullptr; }
  // Values of the active loader; false and -1 without one.
  [[nodiscard]] bool end_of_dataloader() const;
  [[nodiscard]] std::int64_t remainder() const;

  // A loader calls these around each pass; it must remove itself before it is destroyed. Nested
  // passes form a stack. Removing an unknown loader does nothing.
  void add_dataloader(const ActiveDataLoader* loader) const;
  void remove_dataloader(const ActiveDataLoader* loader) const;

  [[nodiscard]] std::string to_string() const;
};

ACCEL_EXPORT std::ostream& operator<<(std::ostream& out, const GradientState& state);

}  // namespace accel

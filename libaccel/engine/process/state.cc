// The process-wide state behind PartialState and AcceleratorState.
//
// One object holds it, created on first use and never destroyed: at exit, threads of Gloo and of
// data loaders may still look at it. The handles copy a shared_ptr under its mutex, so reset() on
// one thread cannot take the state away from under a reader on another.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/utsname.h>

#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/logging.h>
#include <accel/state.h>

#include "libaccel/engine/device/device_choice.h"
#include "libaccel/engine/device/device_library.h"
#include "libaccel/engine/precision/precision_recipe.h"
#include "libaccel/engine/process/old_kernel.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "libaccel/launch/process_role.h"
#include "libaccel/launch/worker_entry.h"
#include "runtime/nvidia_gpus.h"

namespace accel {

namespace detail {

// What the first PartialState found out; constant afterwards, but for the group.
class ProcessState {
 public:
  WorkerIdentity identity;
  DistributedType distributed_type = DistributedType::kNo;
  c10::Device device{c10::kCPU};
  bool debug = false;
  std::string backend;
  std::shared_ptr<ProcessGroup> group;  // also null after destroy_process_group()
  std::vector<std::string> notices;     // for the log, of the set-up
};

}  // namespace detail

namespace {

using detail::ProcessState;

struct SharedState {
  std::mutex mutex;
  std::shared_ptr<ProcessState> process;
  std::optional<PrecisionType> precision;
  std::string ds_config;
};

SharedState& shared_state() {
  static auto* const state = new SharedState;
  return *state;
}

[[noreturn]] void throw_not_initialized(std::string_view state, std::string_view what) {
  throw Error(ErrorCode::kNotInitialized,
              std::string(state) + " has no " + std::string(what) +
                  ": it was reset and not constructed again");
}

std::shared_ptr<ProcessState> process_state(std::string_view what) {
  const std::lock_guard lock(shared_state().mutex);
  if (!shared_state().process) throw_not_initialized("PartialState", what);
  return shared_state().process;
}

bool env_flag(const EnvLookup& env, std::string_view name) {
  const auto value = env(name);
  return value && !value->empty() && or_throw(parse_env_bool(name, *value));
}

// Whether there is a group to join. Options that say who this process is leave no meaning to the variables of a launcher.
bool was_launched(const EnvLookup& env, const ProcessState& state, bool is_told_by_options) {
  if (state.identity.world_size > 1) return true;
  return !is_told_by_options && (env("LOCAL_RANK").has_value() || env("RANK").has_value());
}

void require_master_addr(const EnvLookup& env, const WorkerIdentity& identity) {
  if (identity.local_world_size == identity.world_size || env("MASTER_ADDR")) return;
  throw Error(ErrorCode::kEnvInvalid,
              "MASTER_ADDR is not set, although only " + std::to_string(identity.local_world_size) +
                  " of " + std::to_string(identity.world_size) + " ranks are on this machine",
              "export MASTER_ADDR with the host name of rank 0 on every machine");
}

// Throws what choose_device() throws.
device::DeviceChoice choose_device(const EnvLookup& env,
                                   const WorkerIdentity& identity,
                                   bool is_for_cpu) {
  EnvMap environment;
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  if (const auto visible = env(kVisible)) environment[kVisible] = *visible;
  return device::choose_device(
      {.named = env("ACCELERATE_TORCH_DEVICE"),
       .is_for_cpu = is_for_cpu,
       .visible_gpu =
           is_for_cpu ? "" : device::visible_gpu_name(read_nvidia_machine(), environment),
       .local_rank = identity.local_rank},
      [&env] { return device::load_device_backend(device::device_library_path(env)); });
}

void note_old_kernel(ProcessState& state) {
  utsname name{};
  if (::uname(&name) != 0) return;
  if (auto notice = old_kernel_notice(name.release)) state.notices.push_back(*std::move(notice));
}

// Without OMP_NUM_THREADS every rank would start a thread for each core.
void limit_threads(const EnvLookup& env, const WorkerIdentity& identity) {
  if (env("OMP_NUM_THREADS") || env("MKL_NUM_THREADS")) return;
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                        ? CPU_COUNT(&allowed)
                        : static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / identity.local_world_size));
}

std::shared_ptr<ProcessState> set_up(const PartialStateOptions& options) {
  const EnvLookup env = process_env();
  auto state = std::make_shared<ProcessState>();
  const auto& told = options.init_process_group.identity;
  state->identity = told ? *told : or_throw(parse_worker_env(env));
  detail::connect_to_supervisor(env);
  state->debug = env_flag(env, "ACCELERATE_DEBUG_MODE");
  const bool is_for_cpu = options.cpu || env_flag(env, "ACCELERATE_USE_CPU");
  const device::DeviceChoice chosen = choose_device(env, state->identity, is_for_cpu);
  state->device = chosen.device;
  note_old_kernel(*state);
  if (!was_launched(env, *state, told.has_value())) return state;
  // One process has nobody to meet.
  if (!state->device.is_cpu() && state->identity.world_size == 1) return state;
  state->distributed_type =
      state->device.is_cpu() ? DistributedType::kMultiCpu : DistributedType::kMultiGpu;
  if (!told) require_master_addr(env, state->identity);
  limit_threads(env, state->identity);
  state->group = ProcessGroup::join(
      state->identity,
      options.init_process_group,
      {.backend = chosen.backend, .index = std::max<int>(0, state->device.index())});
  state->backend = state->group->connects_devices() ? "nccl" : state->group->backend();
  return state;
}

// The state that is there already has this process in another group, or elsewhere in the same.
void refuse_other_identity(const WorkerIdentity& present, const PartialStateOptions& options) {
  const auto& wanted = options.init_process_group.identity;
  const auto place = [](const WorkerIdentity& identity) {
    return std::tie(identity.global_rank,
                    identity.world_size,
                    identity.master_addr,
                    identity.master_port,
                    identity.run_id);
  };
  if (!wanted || place(*wanted) == place(present)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "InitProcessGroupKwargs.identity is of another group than the one that this process "
              "has joined",
              "give it to the first PartialState, AcceleratorState or Accelerator, or call "
              "PartialState::reset() on all ranks before");
}

void wait_for_turn() {
  if (const auto group = PartialState::process_group()) group->barrier("main_process_first");
}

}  // namespace

TurnGuard::TurnGuard(bool goes_first)
    : goes_first_(goes_first), exceptions_at_entry_(std::uncaught_exceptions()) {
  if (!goes_first_) wait_for_turn();
}

TurnGuard::~TurnGuard() noexcept(false) {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_entry_;
  if (goes_first_ && !unwinding) wait_for_turn();
}

PartialState::PartialState(const PartialStateOptions& options) {
  std::vector<std::string> notices;
  {
    const std::lock_guard lock(shared_state().mutex);
    if (shared_state().process) {
      refuse_other_identity(shared_state().process->identity, options);
      return;
    }
    launch::end_unless_function_runs();
    shared_state().process = set_up(options);
    launch::note_state(true);
    notices = shared_state().process->notices;
    if (const auto& group = shared_state().process->group; group && !group->notice().empty())
      notices.push_back(group->notice());
  }
  for (const std::string& notice : notices) get_logger("accel").warning(notice);
}

bool PartialState::initialized() noexcept {
  const std::lock_guard lock(shared_state().mutex);
  return shared_state().process != nullptr;
}

void PartialState::reset() {
  std::shared_ptr<ProcessState>
      old;  // destroyed after the lock is released: its group joins threads
  const std::lock_guard lock(shared_state().mutex);
  old.swap(shared_state().process);
  launch::note_state(false);
  shared_state().precision.reset();
  GradientState::reset();
}

int PartialState::process_index() const {
  return process_state("process_index")->identity.global_rank;
}
int PartialState::local_process_index() const {
  return process_state("local_process_index")->identity.local_rank;
}
int PartialState::num_processes() const {
  return process_state("num_processes")->identity.world_size;
}
int PartialState::local_num_processes() const {
  return process_state("local_num_processes")->identity.local_world_size;
}
DistributedType PartialState::distributed_type() const {
  return process_state("distributed_type")->distributed_type;
}
std::string PartialState::backend() const {
  return process_state("backend")->backend;
}
c10::Device PartialState::device() const {
  return process_state("device")->device;
}
bool PartialState::debug() const {
  return process_state("debug")->debug;
}
int PartialState::restart_count() const {
  return process_state("restart_count")->identity.restart_count;
}
bool PartialState::use_distributed() const {
  const auto state = process_state("use_distributed");
  return state->distributed_type != DistributedType::kNo && state->identity.world_size > 1;
}
bool PartialState::is_main_process() const {
  return process_index() == 0;
}
bool PartialState::is_local_main_process() const {
  return local_process_index() == 0;
}
bool PartialState::is_last_process() const {
  return process_index() == num_processes() - 1;
}

void PartialState::wait_for_everyone() const {
  if (const auto group = process_group()) group->barrier("wait_for_everyone");
}

std::shared_ptr<ProcessGroup> PartialState::process_group() {
  const auto state = process_state("process group");
  if (!state->group && !state->backend.empty()) {
    throw Error(ErrorCode::kNotInitialized,
                "the process group was destroyed",
                "call destroy_process_group() after the last collective");
  }
  return state->group;
}

void PartialState::destroy_process_group() {
  const auto state = process_state("process group");
  std::shared_ptr<ProcessGroup> old;
  const std::lock_guard lock(shared_state().mutex);
  old.swap(state->group);
}

void PartialState::write_line(const std::string& line) {
  const std::string text = line + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string PartialState::to_string() const {
  const auto state = process_state("text form");
  std::ostringstream out;
  out << "Distributed environment: DistributedType." << accel::to_string(state->distributed_type);
  if (!state->backend.empty()) out << "  Backend: " << state->backend;
  out << "\nNum processes: " << state->identity.world_size;
  out << "\nProcess index: " << state->identity.global_rank;
  out << "\nLocal process index: " << state->identity.local_rank;
  // PyTorch numbers the CPU in a group, although there is only one.
  const bool numbered = state->device.is_cpu() && state->distributed_type != DistributedType::kNo;
  out << "\nDevice: " << state->device << (numbered ? ":0" : "") << "\n";
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const PartialState& state) {
  return out << state.to_string();
}

AcceleratorState::AcceleratorState(const AcceleratorStateOptions& options)
    : PartialState({.cpu = options.cpu, .init_process_group = options.init_process_group}) {
  if (options.cpu && !device().is_cpu()) {
    throw Error(ErrorCode::kInvalidArgument,
                "cpu = true, but the state was set up with the device " + device().str(),
                "ask for the CPU in the first PartialState, AcceleratorState or Accelerator");
  }
  const std::lock_guard lock(shared_state().mutex);
  if (options.use_fsdp && shared_state().process->distributed_type != DistributedType::kNo) {
    shared_state().process->distributed_type = DistributedType::kFsdp;
  }
  if (options.use_deepspeed && shared_state().process->distributed_type != DistributedType::kNo) {
    shared_state().process->distributed_type = DistributedType::kDeepspeed;
  }
  if (!options.ds_config.empty()) shared_state().ds_config = options.ds_config;
  auto& current = shared_state().precision;
  if (current && options.mixed_precision && *current != *options.mixed_precision) {
    throw Error(ErrorCode::kInvalidArgument,
                "mixed_precision = " + std::string(accel::to_string(*options.mixed_precision)) +
                    ", but the state was set up with " + std::string(accel::to_string(*current)),
                "ask for it in the first AcceleratorState or Accelerator");
  }
  if (current) return;
  current = asked_precision(options.mixed_precision, process_env());
}

bool AcceleratorState::initialized() noexcept {
  const std::lock_guard lock(shared_state().mutex);
  return shared_state().precision.has_value();
}

void AcceleratorState::reset() {
  const std::lock_guard lock(shared_state().mutex);
  shared_state().precision.reset();
  shared_state().ds_config.clear();
}

PrecisionType AcceleratorState::mixed_precision() const {
  const std::lock_guard lock(shared_state().mutex);
  if (!shared_state().precision) throw_not_initialized("AcceleratorState", "mixed_precision");
  return *shared_state().precision;
}

std::string AcceleratorState::to_string() const {
  const std::string text = PartialState::to_string() + "\nMixed precision type: " +
                           std::string(accel::to_string(mixed_precision())) + "\n";
  const std::lock_guard lock(shared_state().mutex);
  const std::string& config = shared_state().ds_config;
  return config.empty() ? text : text + "ds_config: " + config + "\n";
}

std::ostream& operator<<(std::ostream& out, const AcceleratorState& state) {
  return out << state.to_string();
}

}  // namespace accel

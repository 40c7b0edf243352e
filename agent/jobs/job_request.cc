#include "agent/jobs/job_request.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "agent/access/ticket_book.h"
#include "agent/config/agent_config.h"
#include "agent/shims/worker_end.h"

namespace accel::agent {
namespace {

using supervisor::LogRotation;
using supervisor::Milliseconds;
using supervisor::Streams;

constexpr std::size_t kMaxEnvironmentBytes = 512 * 1024;
constexpr int kMaxSameCause = 3;  // as JobRestartPolicy::max_same_crash

Milliseconds to_ms(const google::protobuf::Duration& time) {
  return Milliseconds(time.seconds() * 1000 + time.nanos() / 1'000'000);
}

bool is_sane(const google::protobuf::Duration& time) {
  return time.seconds() >= 0 && time.seconds() <= 366 * 86'400 && time.nanos() >= 0 &&
         time.nanos() < 1'000'000'000;
}

std::string objection_to(const char* name, const google::protobuf::Duration& time) {
  return std::string(name) + " is " + std::to_string(time.seconds()) + " s, expected 0 to 366 days";
}

// Not below 0, and at most a year: a timer of an end that never comes is somebody's mistake.
void check_times(const v1::JobSpec& request, std::vector<std::string>& faults) {
  const auto& gather = request.gather();
  const auto& restart = request.restart();
  const std::pair<const char*, const google::protobuf::Duration*> times[] = {
      {"stop.grace", &request.stop().grace()},
      {"restart.backoff_initial", &restart.backoff_initial()},
      {"restart.backoff_max", &restart.backoff_max()},
      {"restart.reset_after_progress", &restart.reset_after_progress()},
      {"hang.first_beat", &request.hang().first_beat()},
      {"hang.beat", &request.hang().beat()},
      {"gather.join_limit", &gather.join_limit()},
      {"gather.last_call", &gather.last_call()},
      {"gather.prepare_limit", &gather.prepare_limit()},
      {"gather.finish_skew", &gather.finish_skew()},
      {"gather.regroup_timeout", &gather.regroup_timeout()},
      {"fence.lease", &request.fence().lease()},
      {"fence.control_loss_grace", &request.fence().control_loss_grace()}};
  for (const auto& [name, time] : times) {
    if (!is_sane(*time)) faults.push_back(objection_to(name, *time));
  }
}

bool has_nul(const std::string& text) {
  return text.find('\0') != std::string::npos;
}

// Variables by which the caller would decide what the loader, the C library or a shell does before the program.
bool steers_loading(const std::string& name) {
  constexpr const char* kNames[] = {"BASH_ENV",
                                    "ENV",
                                    "GCONV_PATH",
                                    "HOSTALIASES",
                                    "LOCALDOMAIN",
                                    "LOCPATH",
                                    "MALLOC_TRACE",
                                    "NIS_PATH",
                                    "NLSPATH",
                                    "RESOLV_HOST_CONF",
                                    "RES_OPTIONS",
                                    "GLIBC_TUNABLES",
                                    "GETCONF_DIR",
                                    "TZDIR"};
  return name.starts_with("LD_") || std::any_of(std::begin(kNames),
                                                std::end(kNames),
                                                [&](const char* known) { return name == known; });
}

void check_environment(const v1::JobSpec& request, std::vector<std::string>& faults) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : request.env()) {
    bytes += name.size() + value.size() + 2;
    if (name.empty() || name.find('=') != std::string::npos || has_nul(name) || has_nul(value)) {
      faults.push_back("env has an impossible variable '" + name.substr(0, 64) + "'");
    }
  }
  if (bytes > kMaxEnvironmentBytes) {
    faults.push_back("env has " + std::to_string(bytes) + " bytes; at most " +
                     std::to_string(kMaxEnvironmentBytes) + " are possible");
  }
}

void check_program(const v1::JobSpec& request, std::vector<std::string>& faults) {
  if (request.argv().empty() || request.argv(0).empty()) faults.push_back("argv names no program");
  if (std::any_of(request.argv().begin(), request.argv().end(), has_nul))
    faults.push_back("argv has a NUL byte");
  const auto check_path = [&](const char* field, const std::string& path) {
    if (!path.empty() && (!path.starts_with('/') || has_nul(path)))
      faults.push_back(field + (" '" + path.substr(0, 128)) + "' is not an absolute path");
  };
  check_path("cwd", request.cwd());
  check_path("tracking_dir", request.tracking_dir());
}

void check_policies(const v1::JobSpec& request, std::vector<std::string>& faults) {
  const auto& stop = request.stop();
  if (stop.signal() < 0 || stop.signal() >= NSIG)
    faults.push_back("stop.signal " + std::to_string(stop.signal()) + " does not exist");
  if (stop.preempt_signal() < 0 || stop.preempt_signal() >= NSIG) {
    faults.push_back("stop.preempt_signal " + std::to_string(stop.preempt_signal()) +
                     " does not exist");
  }
  if (request.restart().max_restarts() > 1'000'000)
    faults.push_back("restart.max_restarts is above 1000000");
  if (request.restart().max_same_cause() > 1'000'000)
    faults.push_back("restart.max_same_cause is above 1000000");
  const double jitter = request.restart().jitter();
  if (!(jitter >= 0 && jitter <= 1))
    faults.push_back("restart.jitter is " + std::to_string(jitter) + ", expected 0 to 1");
  for (const auto& [name, action] : request.restart().on_cause()) {
    if (causes_named(name).empty()) {
      faults.push_back("restart.on_cause has '" + name.substr(0, 64) +
                       "', expected NONZERO, SIGNALED, OOM, HANG, LOST or EXEC_FAILED");
    }
    if (action == v1::ACTION_IGNORE) {
      faults.push_back(
          "restart.on_cause IGNORE is not supported: the other ranks would wait for "
          "the one that is gone");
    } else if (!v1::Action_IsValid(action)) {
      faults.push_back("restart.on_cause " + std::to_string(action) + " does not exist");
    }
  }
}

void check_preflight(const v1::JobSpec& request, std::vector<std::string>& faults) {
  constexpr int kMostChecks = 16;
  if (request.preflight_size() > kMostChecks) {
    faults.push_back("preflight has " + std::to_string(request.preflight_size()) +
                     " checks; at most " + std::to_string(kMostChecks) + " are possible");
  }
  for (const v1::Check& check : request.preflight()) {
    const std::string name = "preflight check '" + check.name().substr(0, 64) + "'";
    if (!is_valid_id(check.name()))
      faults.push_back(name + " has no name of the form [A-Za-z0-9_.-]{1,64}");
    if (check.argv().empty() || check.argv(0).empty()) faults.push_back(name + " names no program");
    if (std::any_of(check.argv().begin(), check.argv().end(), has_nul))
      faults.push_back(name + " has a NUL byte in its argv");
    if (check.has_timeout() && (!is_sane(check.timeout()) || to_ms(check.timeout()).count() <= 0))
      faults.push_back(name + " has a timeout that is not above 0");
  }
}

AffinityMode mode_of(const v1::Affinity& affinity) {
  switch (affinity.mode()) {
    case v1::Affinity::MODE_NODE:
      return AffinityMode::kNode;
    case v1::Affinity::MODE_SOCKET:
      return AffinityMode::kSocket;
    case v1::Affinity::MODE_EXCLUSIVE:
      return AffinityMode::kExclusive;
    case v1::Affinity::MODE_L3:
      return AffinityMode::kL3;
    default:
      return AffinityMode::kNone;
  }
}

void check_hang(const v1::HangPolicy& hang, std::vector<std::string>& faults) {
  if (!hang.section().empty()) faults.push_back("hang.section is not supported");
  const bool is_whole = hang.safety() == std::floor(hang.safety());
  if (hang.safety() != 0 && !(is_whole && hang.safety() >= 1 && hang.safety() <= 1000))
    faults.push_back("hang.safety is not a whole number from 1 to 1000");
  if (hang.enabled() && !hang.auto_() && hang.has_beat() && to_ms(hang.beat()).count() <= 0)
    faults.push_back("hang.beat is not above 0");
}

void check_affinity(const v1::Affinity& affinity, std::vector<std::string>& faults) {
  if (!v1::Affinity::Mode_IsValid(affinity.mode()))
    faults.push_back("affinity.mode " + std::to_string(affinity.mode()) + " does not exist");
  if (affinity.bind_memory() && mode_of(affinity) == AffinityMode::kNone)
    faults.push_back("affinity.bind_memory needs an affinity.mode that gives workers cores");
}

void check_log(const v1::LogPolicy& log, std::vector<std::string>& faults) {
  if (log.rotate_bytes() != 0 && log.rotate_bytes() < LogRotation::kLeastBytes) {
    faults.push_back("log.rotate_bytes is " + std::to_string(log.rotate_bytes()) + ", below " +
                     std::to_string(LogRotation::kLeastBytes));
  }
  if (log.keep() > LogRotation::kMostKept) {
    faults.push_back("log.keep is " + std::to_string(log.keep()) + ", above " +
                     std::to_string(LogRotation::kMostKept));
  }
  if (!v1::LogPolicy::Overflow_IsValid(log.overflow()))
    faults.push_back("log.overflow " + std::to_string(log.overflow()) + " does not exist");
  if (log.keep() != 0 && log.rotate_bytes() == 0)
    faults.push_back("log.keep is for log.rotate_bytes, which is not given");
}

void check_env_pass(const v1::JobSpec& request, std::vector<std::string>& faults) {
  for (const auto& name : request.env_pass()) {
    if (name.empty() || name.find('=') != std::string::npos || has_nul(name))
      faults.push_back("env_pass has an impossible name '" + name.substr(0, 64) + "'");
  }
}

Result<void> all_faults(const std::vector<std::string>& faults) {
  if (faults.empty()) return {};
  Error error(ErrorCode::kInvalidArgument, faults.front());
  for (std::size_t i = 1; i < faults.size(); ++i) error.with_detail("also", faults[i]);
  return error;
}

supervisor::HangPolicy to_hang_policy(const v1::HangPolicy& asked) {
  supervisor::HangPolicy hang;
  if (!asked.enabled()) return hang;
  const bool is_fixed = asked.has_beat() && !asked.auto_();
  hang.mode = is_fixed ? supervisor::HangMode::kFixed : supervisor::HangMode::kAuto;
  if (is_fixed) hang.timeout = to_ms(asked.beat());
  if (asked.has_first_beat() && to_ms(asked.first_beat()).count() > 0)
    hang.first_beat = to_ms(asked.first_beat());
  if (asked.safety() >= 1) hang.safety = static_cast<int>(asked.safety());
  return hang;
}

supervisor::Overflow to_overflow(v1::LogPolicy::Overflow asked) {
  if (asked == v1::LogPolicy::OVERFLOW_DROP) return supervisor::Overflow::kDrop;
  if (asked == v1::LogPolicy::OVERFLOW_SAMPLE) return supervisor::Overflow::kSample;
  return supervisor::Overflow::kBlock;
}

// The whole environment of the workers but for what the user brought: nothing of the agent's own.
EnvMap login_environment(const UserAccount& user) {
  return {{"HOME", user.home},
          {"LOGNAME", user.name},
          {"PATH", "/usr/local/bin:/usr/bin:/bin"},
          {"SHELL", user.shell},
          {"USER", user.name}};
}

// Where a job is asked for, either is taken: a name of this form would stand for another job.
bool has_form_of_uuid(const std::string& job_id) {
  constexpr std::size_t kUuidDigits = 32;  // to_hex() of 16 bytes
  return job_id.size() == kUuidDigits &&
         job_id.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
}

template <typename T>
void set_if_given(bool is_given, const google::protobuf::Duration& time, T& out) {
  if (is_given) out = to_ms(time);
}

}  // namespace

Result<void> check_job_request(const v1::JobSpec& request) {
  std::vector<std::string> faults;
  if (has_form_of_uuid(request.job_id())) {
    faults.push_back("job_id '" + request.job_id() +
                     "' has the form of a job's uuid, 32 hexadecimal digits: choose another name");
  }
  if (!request.job_id().empty() && !is_valid_id(request.job_id())) {
    faults.push_back("job_id '" + request.job_id().substr(0, 64) +
                     "' is not of the form [A-Za-z0-9_.-]{1,64}");
  }
  if (request.procs_per_node() > kMaxLocalWorkers) {
    faults.push_back("procs_per_node " + std::to_string(request.procs_per_node()) + " is above " +
                     std::to_string(kMaxLocalWorkers));
  }
  if (request.max_nodes() != 0 && request.max_nodes() < request.min_nodes()) {
    faults.push_back("max_nodes " + std::to_string(request.max_nodes()) + " is below min_nodes " +
                     std::to_string(request.min_nodes()));
  }
  if (request.max_nodes() > 100'000 || request.min_nodes() > 100'000)
    faults.push_back("more than 100000 nodes");
  check_program(request, faults);
  check_environment(request, faults);
  check_times(request, faults);
  check_policies(request, faults);
  check_hang(request.hang(), faults);
  check_affinity(request.affinity(), faults);
  check_log(request.log(), faults);
  check_preflight(request, faults);
  check_env_pass(request, faults);
  return all_faults(faults);
}

Result<void> check_one_node_request(const v1::JobSpec& request) {
  std::vector<std::string> faults;
  const auto refuse = [&](bool is_asked, const char* what) {
    if (is_asked) faults.push_back(std::string(what) + " is for jobs over several nodes");
  };
  const auto& restart = request.restart();
  refuse(restart.scale_up() != v1::SCALE_UP_UNSPECIFIED, "restart.scale_up");
  refuse(request.has_fence(), "fence");
  refuse(request.has_gather(), "gather");
  refuse(!request.token_key().empty(), "token_key");
  return all_faults(faults);
}

Result<void> apply_affinity(const v1::JobSpec& request,
                            const GrantedCpus& granted,
                            supervisor::JobSpec& spec) {
  const auto& asked = request.affinity();
  const AffinityMode mode = mode_of(asked);
  if (mode == AffinityMode::kNone && !asked.set_omp() && asked.reserve_cores() == 0) return {};
  auto machine = granted.topology(mode == AffinityMode::kL3 ? Caches::kRead : Caches::kLeftOut);
  if (!machine) return std::move(machine).error();
  if (asked.reserve_cores() >= machine->cores.size()) {
    return Error(ErrorCode::kInvalidArgument,
                 "affinity.reserve_cores is " + std::to_string(asked.reserve_cores()) + ", and " +
                     std::to_string(machine->cores.size()) + " cores are granted",
                 "reserve fewer cores");
  }
  machine->cores.erase(machine->cores.begin(), machine->cores.begin() + asked.reserve_cores());
  AffinityPlan plan = plan_affinity(*machine, static_cast<int>(spec.workers.size()), mode);
  if (const auto quota = asked.set_omp() ? granted.quota() : std::nullopt)
    bound_threads(plan, *quota, machine->cores.size());
  std::vector<int> all;
  for (const Core& core : machine->cores) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < spec.workers.size(); ++i) {
    supervisor::WorkerSpec& worker = spec.workers[i];
    const WorkerShare& share = plan.workers[i];
    const bool is_kept_off = share.cpus.empty() && asked.reserve_cores() > 0;
    worker.cpus = is_kept_off ? all : share.cpus;
    worker.bind_memory = asked.bind_memory();
    if (asked.bind_memory()) {
      worker.memory_nodes = numa_nodes_of(*machine, share.cpus);
    } else if (share.numa_node) {
      worker.memory_nodes = {*share.numa_node};
    }
    const bool is_given = spec.env.contains("OMP_NUM_THREADS");
    if (asked.set_omp() && !is_given)
      worker.env["OMP_NUM_THREADS"] = std::to_string(share.num_threads);
  }
  return {};
}

Result<void> pass_environment(const v1::JobSpec& request,
                              const EnvLookup& agents,
                              bool is_other_user,
                              supervisor::JobSpec& spec) {
  if (request.env_pass().empty()) return {};
  if (is_other_user) {
    return Error(ErrorCode::kAgentRefused,
                 "env_pass takes variables of the agent, and this job runs as another user",
                 "give their values in env");
  }
  for (const auto& name : request.env_pass()) {
    auto value = agents(name);
    if (value && !request.env().contains(name)) spec.env[name] = *std::move(value);
  }
  return {};
}

void set_restart_rules(const v1::RestartPolicy& asked, supervisor::RestartPolicy& policy) {
  if (asked.jitter() > 0 && asked.jitter() <= 1) policy.jitter = asked.jitter();
  for (const auto& [name, action] : asked.on_cause()) {
    auto& causes = action == v1::ACTION_FAIL ? policy.fail_after : policy.restart_after;
    for (const auto cause : causes_named(name)) causes.push_back(cause);
  }
}

supervisor::StopPolicy stop_policy_of(const v1::JobSpec& request) {
  const auto& asked = request.stop();
  supervisor::StopPolicy policy;
  if (asked.signal() != 0) policy.signal = asked.signal();
  set_if_given(asked.has_grace(), asked.grace(), policy.grace);
  policy.dump_stacks = asked.dump_stacks();
  policy.preempt_signal = asked.preempt_signal();
  return policy;
}

Result<std::optional<Milliseconds>> grace_of(const v1::StopReq& request) {
  if (!request.has_grace()) return std::optional<Milliseconds>();
  if (!is_sane(request.grace()))
    return Error(ErrorCode::kInvalidArgument, objection_to("grace", request.grace()));
  return std::optional(to_ms(request.grace()));
}

std::string make_job_id(const v1::JobSpec& request) {
  std::string id = std::filesystem::path(request.argv(0)).filename().string().substr(0, 32);
  for (char& c : id) {
    if (!is_valid_id("x" + std::string(1, c))) c = '_';
  }
  return (id.empty() ? "job" : id) + "-" + to_hex(random_bytes(4));
}

supervisor::JobSpec make_job_spec(const v1::JobSpec& request,
                                  const LocalPart& part,
                                  const UserAccount& user,
                                  const std::string& log_dir,
                                  bool scrub,
                                  std::vector<std::string>& scrubbed) {
  supervisor::JobSpec spec;
  spec.job_id = request.job_id();
  spec.cwd = request.cwd().empty() ? user.home : request.cwd();
  spec.env = login_environment(user);
  for (const auto& [name, value] : request.env()) {
    if (scrub && steers_loading(name)) {
      scrubbed.push_back(name);
    } else {
      spec.env[name] = value;
    }
  }
  std::sort(scrubbed.begin(), scrubbed.end());
  spec.env_mode = EnvMode::kDistributed;
  spec.identity.world_size = part.world_size;
  spec.identity.local_world_size = part.num_ranks;
  spec.identity.node_rank = part.node_rank;
  spec.identity.num_nodes = part.num_nodes;
  spec.identity.job_id = spec.job_id;
  spec.identity.run_id = spec.job_id;
  spec.identity.max_restarts = static_cast<int>(request.restart().max_restarts());
  for (int rank = 0; rank < part.num_ranks; ++rank) {
    supervisor::WorkerSpec worker;
    worker.local_rank = rank;
    worker.global_rank = part.first_rank + rank;
    worker.argv.assign(request.argv().begin(), request.argv().end());
    worker.redirect = Streams::kAll;
    spec.workers.push_back(std::move(worker));
  }
  spec.stop = stop_policy_of(request);
  const auto& restart = request.restart();
  spec.restart.max_restarts = static_cast<int>(restart.max_restarts());
  set_if_given(
      restart.has_backoff_initial(), restart.backoff_initial(), spec.restart.backoff_initial);
  set_if_given(restart.has_backoff_max(), restart.backoff_max(), spec.restart.backoff_max);
  set_if_given(restart.has_reset_after_progress(),
               restart.reset_after_progress(),
               spec.restart.stable_after);
  set_restart_rules(restart, spec.restart);
  spec.restart.max_same_crash = kMaxSameCause;
  if (restart.max_same_cause() != 0)
    spec.restart.max_same_crash = static_cast<int>(restart.max_same_cause());
  spec.hang = to_hang_policy(request.hang());
  for (const v1::Check& asked : request.preflight()) {
    supervisor::PreflightCheck check;
    check.name = asked.name();
    check.argv.assign(asked.argv().begin(), asked.argv().end());
    set_if_given(asked.has_timeout(), asked.timeout(), check.limit);
    spec.preflight.push_back(std::move(check));
  }
  const auto& limits = request.limits();
  spec.limits = {.memory_bytes = limits.mem_bytes(),
                 .pids = limits.pids(),
                 .open_files = limits.nofile(),
                 .core_bytes = limits.core_bytes(),
                 .locked_bytes = limits.memlock()};
  spec.log.dir = log_dir;
  spec.log.overflow = to_overflow(request.log().overflow());
  spec.log.merge_stderr = request.log().merge_stderr();
  spec.log.rotation.bytes = request.log().rotate_bytes();
  if (request.log().keep() != 0) spec.log.rotation.keep = static_cast<int>(request.log().keep());
  spec.console.stdin_to_rank0 = false;
  spec.store.port = 0;
  return spec;
}

}  // namespace accel::agent

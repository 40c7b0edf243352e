// The JSON of a JobSpec, and the checks on it.
//
// Writer and reader list the members of each struct once, in each_spec_member(); a member that is added
// there travels both ways. The version stands first: a shim of another build refuses the job
// instead of guessing.

#include "runtime/supervisor/protocol/job_spec.h"

#include <algorithm>
#include <set>

#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::supervisor {
namespace {

constexpr std::size_t kMaxJobIdLength = 64;
constexpr std::size_t kMaxWorkers = 4096;
constexpr std::size_t kMinTokenLength = 16;

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, WorkerIdentity>
void each_spec_member(T& identity, Visit&& visit) {
  visit("global_rank", identity.global_rank);
  visit("world_size", identity.world_size);
  visit("local_rank", identity.local_rank);
  visit("local_world_size", identity.local_world_size);
  visit("node_rank", identity.node_rank);
  visit("num_nodes", identity.num_nodes);
  visit("restart_count", identity.restart_count);
  visit("max_restarts", identity.max_restarts);
  visit("role", identity.role);
  visit("run_id", identity.run_id);
  visit("master_addr", identity.master_addr);
  visit("master_port", identity.master_port);
  visit("use_agent_store", identity.use_agent_store);
  visit("error_file", identity.error_file);
  visit("channel", identity.channel);
  visit("job_id", identity.job_id);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, WorkerSpec>
void each_spec_member(T& worker, Visit&& visit) {
  visit("local_rank", worker.local_rank);
  visit("global_rank", worker.global_rank);
  visit("argv", worker.argv);
  visit("env", worker.env);
  visit("cpus", worker.cpus);
  visit("memory_nodes", worker.memory_nodes);
  visit("bind_memory", worker.bind_memory);
  visit("redirect", worker.redirect);
  visit("tee", worker.tee);
  visit("is_starter", worker.is_starter);
  visit("has_virtual_local_rank", worker.has_virtual_local_rank);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, PreflightCheck>
void each_spec_member(T& check, Visit&& visit) {
  visit("name", check.name);
  visit("argv", check.argv);
  visit("limit", check.limit);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, StopPolicy>
void each_spec_member(T& stop, Visit&& visit) {
  visit("signal", stop.signal);
  visit("grace", stop.grace);
  visit("linger", stop.linger);
  visit("kill_wait", stop.kill_wait);
  visit("requeue_exit_code", stop.requeue_exit_code);
  visit("drain", stop.drain);
  visit("dump_stacks", stop.dump_stacks);
  visit("dump_wait", stop.dump_wait);
  visit("preempt_signal", stop.preempt_signal);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, RestartPolicy>
void each_spec_member(T& restart, Visit&& visit) {
  visit("max_restarts", restart.max_restarts);
  visit("max_out_of_memory", restart.max_out_of_memory);
  visit("backoff_initial", restart.backoff_initial);
  visit("backoff_max", restart.backoff_max);
  visit("stable_after", restart.stable_after);
  visit("jitter", restart.jitter);
  visit("max_same_crash", restart.max_same_crash);
  visit("fail_after", restart.fail_after);
  visit("restart_after", restart.restart_after);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, LogPolicy>
void each_spec_member(T& log, Visit&& visit) {
  visit("dir", log.dir);
  visit("error_dir", log.error_dir);
  visit("prefix", log.prefix);
  visit("prefix_template", log.prefix_template);
  visit("overflow", log.overflow);
  visit("merge_stderr", log.merge_stderr);
  visit("rotate_bytes", log.rotation.bytes);
  visit("keep", log.rotation.keep);
  visit("out_filters", log.out_filters);
  visit("err_filters", log.err_filters);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, ConsolePolicy>
void each_spec_member(T& console, Visit&& visit) {
  visit("use_pty", console.use_pty);
  visit("stdin_to_rank0", console.stdin_to_rank0);
  visit("stop_by_input", console.stop_by_input);
  visit("held_input", console.held_input);
  visit("foreground", console.foreground);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, StorePolicy>
void each_spec_member(T& store, Visit&& visit) {
  visit("enabled", store.enabled);
  visit("bind_address", store.bind_address);
  visit("port", store.port);
  visit("exact_port", store.exact_port);
  visit("members", store.members);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, LimitPolicy>
void each_spec_member(T& limits, Visit&& visit) {
  visit("memory_bytes", limits.memory_bytes);
  visit("pids", limits.pids);
  visit("open_files", limits.open_files);
  visit("core_bytes", limits.core_bytes);
  visit("locked_bytes", limits.locked_bytes);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, OwnerPolicy>
void each_spec_member(T& owner, Visit&& visit) {
  visit("on_loss", owner.on_loss);
  visit("hold", owner.hold);
  visit("runtime_dir", owner.runtime_dir);
  visit("token", owner.token);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, HangPolicy>
void each_spec_member(T& hang, Visit&& visit) {
  visit("mode", hang.mode);
  visit("timeout", hang.timeout);
  visit("floor", hang.floor);
  visit("safety", hang.safety);
  visit("first_beat", hang.first_beat);
  visit("other_phase", hang.other_phase);
  visit("dump_wait", hang.dump_wait);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, JobSpec>
void each_spec_member(T& spec, Visit&& visit) {
  visit("job_id", spec.job_id);
  visit("cwd", spec.cwd);
  visit("env", spec.env);
  visit("env_mode", spec.env_mode);
  visit("identity", spec.identity);
  visit("workers", spec.workers);
  visit("stop", spec.stop);
  visit("restart", spec.restart);
  visit("log", spec.log);
  visit("console", spec.console);
  visit("store", spec.store);
  visit("control", spec.control);
  visit("owner", spec.owner);
  visit("hang", spec.hang);
  visit("node_id", spec.node_id);
  visit("limits", spec.limits);
  visit("instance", spec.instance);
  visit("preflight", spec.preflight);
}

template <typename T>
concept Struct = requires(T& value) {
  each_spec_member(value, [](const char*, auto&) {});
};

template <typename T>
Json encode_struct(const T& value);

template <typename T>
Json encode_member(const T& member) {
  if constexpr (Struct<const T>) {
    return encode_struct(member);
  } else {
    return to_field(member);
  }
}

template <typename T>
requires Struct<const T> Json encode_member(const std::vector<T>& items) {
  Json array = Json::array();
  for (const T& item : items) array.push_back(encode_struct(item));
  return array;
}

template <typename T>
Json encode_struct(const T& value) {
  Json json = Json::object();
  each_spec_member(
      value, [&](const char* name, const auto& member) { json[name] = encode_member(member); });
  return json;
}

// What an older version may lack is known by its number.
template <typename T>
void decode_struct(const Json& json, T& out, int version);

void decode_member(const Json& json, Streams& out, int) {
  from_enum_field(json, out, Streams::kAll);
}
void decode_member(const Json& json, EnvMode& out, int) {
  from_enum_field(json, out, EnvMode::kDistributed);
}
void decode_member(const Json& json, OwnerLoss& out, int) {
  from_enum_field(json, out, OwnerLoss::kHold);
}
void decode_member(const Json& json, std::vector<ExitCause>& out, int) {
  from_enum_fields(json, out, kLastExitCause);
}
void decode_member(const Json& json, HangMode& out, int) {
  from_enum_field(json, out, HangMode::kFixed);
}
void decode_member(const Json& json, Overflow& out, int) {
  from_enum_field(json, out, Overflow::kSample);
}
void decode_member(const Json& json, GenerationControl& out, int) {
  from_enum_field(json, out, GenerationControl::kOwner);
}
template <typename T>
requires Struct<T>
void decode_member(const Json& json, std::vector<T>& out, int version) {
  if (!json.is_array()) throw FieldError("is not an array");
  for (const Json& item : json) decode_struct(item, out.emplace_back(), version);
}

template <typename T>
void decode_member(const Json& json, T& out, int version) {
  if constexpr (Struct<T>) {
    decode_struct(json, out, version);
  } else {
    from_field(json, out);
  }
}

template <typename T>
void decode_struct(const Json& json, T& out, int version) {
  each_spec_member(out, [&](const char* name, auto& member) {
    const bool may_lack = version < JobSpec::kVersion && json.is_object();
    if (may_lack && !json.contains(name)) return;
    read_member(json, name, [&](const Json& field) { decode_member(field, member, version); });
  });
}

// There was a switch alone.
Overflow overflow_before_version_4(const Json& job) {
  bool drop = false;
  if (job.contains("log") && job["log"].contains("drop")) read_member(job["log"], "drop", drop);
  return drop ? Overflow::kDrop : Overflow::kBlock;
}

bool is_valid_job_id(const std::string& id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  };
  return !id.empty() && id.size() <= kMaxJobIdLength && std::all_of(id.begin(), id.end(), allowed);
}

bool is_valid_instance(const std::string& instance) {
  return instance.size() == JobSpec::kInstanceLength &&
         instance.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool has_nul(const std::string& bytes) {
  return bytes.find('\0') != std::string::npos;
}

bool is_valid_env(const EnvMap& env) {
  return std::all_of(env.begin(), env.end(), [](const auto& variable) {
    const auto& [name, value] = variable;
    return !name.empty() && name.find('=') == std::string::npos && !has_nul(name) &&
           !has_nul(value);
  });
}

Result<void> invalid(std::string what) {
  return Error(ErrorCode::kInvalidArgument, std::move(what));
}

Result<void> check_worker(const WorkerSpec& worker) {
  const std::string who = "worker " + std::to_string(worker.local_rank);
  if (worker.argv.empty() || worker.argv[0].empty()) return invalid(who + " has no program");
  if (std::any_of(worker.argv.begin(), worker.argv.end(), has_nul)) {
    return invalid(who + " has an argument with a NUL byte");
  }
  if (!is_valid_env(worker.env)) return invalid(who + " has an impossible environment variable");
  if (std::any_of(worker.cpus.begin(), worker.cpus.end(), [](int cpu) { return cpu < 0; })) {
    return invalid(who + " has a negative core number");
  }
  const auto is_impossible = [](int node) { return node < 0 || node >= kMaxMemoryNodes; };
  if (std::any_of(worker.memory_nodes.begin(), worker.memory_nodes.end(), is_impossible)) {
    return invalid(who + " has a memory node that is not from 0 to " +
                   std::to_string(kMaxMemoryNodes - 1));
  }
  if (worker.bind_memory && worker.memory_nodes.empty())
    return invalid(who + " has its memory bound to no node");
  return {};
}

Result<void> check_preflight(const std::vector<PreflightCheck>& checks) {
  for (const PreflightCheck& check : checks) {
    if (!is_valid_job_id(check.name)) {
      return invalid("the name of a preflight check, '" + check.name +
                     "', is not of the form [A-Za-z0-9_.-]{1,64}");
    }
    const std::string who = "preflight check '" + check.name + "'";
    if (check.argv.empty() || check.argv[0].empty()) return invalid(who + " has no program");
    if (std::any_of(check.argv.begin(), check.argv.end(), has_nul))
      return invalid(who + " has an argument with a NUL byte");
    if (check.limit <= Milliseconds::zero()) return invalid(who + " has no time");
  }
  return {};
}

Result<void> check_policies(const JobSpec& spec) {
  const auto is_negative = [](Milliseconds time) { return time < Milliseconds::zero(); };
  if (spec.stop.signal < 1 || spec.stop.signal >= NSIG)
    return invalid("the stop signal does not exist");
  if (spec.stop.preempt_signal < 0 || spec.stop.preempt_signal >= NSIG)
    return invalid("the signal of preemption does not exist");
  if (is_negative(spec.stop.grace) || is_negative(spec.stop.linger) ||
      is_negative(spec.stop.kill_wait) || is_negative(spec.stop.drain) ||
      is_negative(spec.stop.dump_wait)) {
    return invalid("a time of the stop policy is negative");
  }
  if (spec.stop.requeue_exit_code < 0 || spec.stop.requeue_exit_code > 255) {
    return invalid("the requeue exit code is " + std::to_string(spec.stop.requeue_exit_code) +
                   ", expected 0 to 255");
  }
  if (spec.restart.max_restarts < 0 || spec.restart.max_out_of_memory < 0 ||
      spec.restart.max_same_crash < 0)
    return invalid("a number of restarts is negative");
  if (!(spec.restart.jitter >= 0 && spec.restart.jitter <= 1))
    return invalid("the jitter of restarts is not from 0 to 1");
  if (is_negative(spec.restart.backoff_initial) || is_negative(spec.restart.backoff_max) ||
      is_negative(spec.restart.stable_after)) {
    return invalid("a time of the restart policy is negative");
  }
  const LogRotation& rotation = spec.log.rotation;
  if (rotation.bytes != 0 && rotation.bytes < LogRotation::kLeastBytes) {
    return invalid("log files are full at " + std::to_string(rotation.bytes) +
                   " bytes, expected 0 or at least " + std::to_string(LogRotation::kLeastBytes));
  }
  if (rotation.keep < 1 || rotation.keep > LogRotation::kMostKept) {
    return invalid("of full log files " + std::to_string(rotation.keep) + " stay, expected 1 to " +
                   std::to_string(LogRotation::kMostKept));
  }
  if (spec.console.foreground && spec.workers.size() != 1) {
    return invalid("only a single worker can have the terminal");
  }
  return {};
}

Result<void> check_hold(const JobSpec& spec) {
  if (spec.owner.on_loss == OwnerLoss::kKill) return {};
  if (spec.owner.hold <= Milliseconds::zero())
    return invalid("the hold of the owner is not above 0");
  if (!spec.owner.runtime_dir.starts_with('/') || has_nul(spec.owner.runtime_dir)) {
    return invalid("the runtime folder '" + spec.owner.runtime_dir + "' is not an absolute path");
  }
  if (spec.owner.token.size() < kMinTokenLength) {
    return invalid("the token has " + std::to_string(spec.owner.token.size()) +
                   " bytes, expected " + std::to_string(kMinTokenLength) + " or more");
  }
  if (spec.console.foreground)
    return invalid("a job that outlives its owner cannot have the terminal");
  return {};
}

Result<void> check_hang(const HangPolicy& hang) {
  const auto is_above_zero = [](Milliseconds time) { return time > Milliseconds::zero(); };
  if (hang.mode == HangMode::kOff) return {};
  if (hang.mode == HangMode::kFixed && !is_above_zero(hang.timeout)) {
    return invalid("the hang timeout is not above 0");
  }
  if (hang.safety < 1 || !is_above_zero(hang.floor) || !is_above_zero(hang.first_beat) ||
      !is_above_zero(hang.other_phase) || hang.dump_wait < Milliseconds::zero()) {
    return invalid("a time of the hang policy is not above 0");
  }
  return {};
}

Result<void> check(const JobSpec& spec) {
  if (!is_valid_job_id(spec.job_id)) {
    return invalid("job id '" + spec.job_id + "' is not of the form [A-Za-z0-9_.-]{1,64}");
  }
  if (!spec.node_id.empty() && !is_valid_job_id(spec.node_id)) {
    return invalid("node id '" + spec.node_id + "' is not of the form [A-Za-z0-9_.-]{1,64}");
  }
  if (!spec.instance.empty() && !is_valid_instance(spec.instance)) {
    return invalid("the instance '" + spec.instance + "' is not of the form [0-9a-f]{32}");
  }
  if (has_nul(spec.cwd)) return invalid("the working directory has a NUL byte");
  if (!is_valid_env(spec.env)) return invalid("the environment has an impossible variable");
  if (spec.workers.empty()) return invalid("the job has no workers");
  if (spec.workers.size() > kMaxWorkers) {
    return invalid("the job has more than " + std::to_string(kMaxWorkers) + " workers");
  }
  std::set<int> ranks;
  for (const WorkerSpec& worker : spec.workers) {
    if (worker.local_rank < 0 || worker.global_rank < 0) return invalid("a rank is negative");
    if (!ranks.insert(worker.local_rank).second) {
      return invalid("local rank " + std::to_string(worker.local_rank) + " is there twice");
    }
    if (auto checked = check_worker(worker); !checked) return checked;
  }
  const bool is_numbered = *ranks.rbegin() + 1 == static_cast<int>(ranks.size());
  if (spec.control == GenerationControl::kOwner && !is_numbered) {
    return invalid("the local ranks are not numbered from 0");
  }
  if (spec.control == GenerationControl::kOwner && spec.console.foreground) {
    return invalid("a job whose generations the owner drives cannot have the terminal");
  }
  if (auto checked = check_preflight(spec.preflight); !checked) return checked;
  if (auto checked = check_hold(spec); !checked) return checked;
  if (auto checked = check_hang(spec.hang); !checked) return checked;
  return check_policies(spec);
}

}  // namespace

std::string to_json(const JobSpec& spec) {
  Json json = encode_struct(spec);
  json["version"] = JobSpec::kVersion;
  return json.dump();
}

Result<JobSpec> job_spec_from_json(std::string_view json) {
  auto spec = decode_json(json, "the job", [](const Json& object) {
    int version = 0;
    read_member(object, "version", version);
    if (version < JobSpec::kOldestVersion || version > JobSpec::kVersion) {
      throw FieldError("version " + std::to_string(version) + " instead of " +
                       std::to_string(JobSpec::kVersion));
    }
    JobSpec out;
    decode_struct(object, out, version);
    if (version < 4) out.log.overflow = overflow_before_version_4(object);
    return out;
  });
  if (!spec) return spec;
  if (auto checked = check(*spec); !checked) return std::move(checked).error();
  return spec;
}

}  // namespace accel::supervisor

// The environment contract: identity -> variables -> identity, and the table both are documented
// by.
//
// Reading is wider than writing. A program of libaccel may be started by accel-launch, by torchrun,
// by mpirun or by hand, so every number has a list of names; the first name that holds a value of
// at least 0 wins (launchers use -1 for "not distributed"). What is missing is derived: ranks on a
// node follow one another, so local_rank = global_rank % local_world_size.

#include "accel/env_contract.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace accel {
namespace {

constexpr int kMaxPort = 65535;

Error invalid(std::string_view name, std::string_view value, std::string_view expected) {
  std::string message(name);
  message += " is '";
  message += value;
  message += "', expected ";
  message += expected;
  return Error(ErrorCode::kEnvInvalid, std::move(message));
}

// A whole number that fits an int, surrounding blanks allowed as in Python's int().
std::optional<int> parse_int(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct NamedInt {
  std::string_view name;
  int value = 0;
};

// The first of `names` that is set to a number of at least 0.
Result<std::optional<NamedInt>> first_number(const EnvLookup& lookup,
                                             const std::vector<std::string_view>& names) {
  for (std::string_view name : names) {
    const std::optional<std::string> text = lookup(name);
    if (!text || text->empty()) continue;
    const std::optional<int> number = parse_int(*text);
    if (!number) return invalid(name, *text, "a whole number");
    if (*number >= 0) return std::optional(NamedInt{name, *number});
  }
  return std::optional<NamedInt>();
}

// The numbers of the contract as they were found, before anything is derived.
struct Found {
  std::optional<NamedInt> rank, world_size, local_rank, local_world_size, node_rank, num_nodes;
  std::optional<NamedInt> restart_count, max_restarts, generation, master_port;
};

Result<Found> find_numbers(const EnvLookup& lookup) {
  Found found;
  const std::pair<std::optional<NamedInt>*, std::vector<std::string_view>> wanted[] = {
      {&found.rank, {"RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"}},
      {&found.world_size,
       {"WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}},
      {&found.local_rank,
       {"ACCEL_LOCAL_RANK",
        "LOCAL_RANK",
        "MPI_LOCALRANKID",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK"}},
      {&found.local_world_size,
       {"LOCAL_WORLD_SIZE",
        "MPI_LOCALNRANKS",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MV2_COMM_WORLD_LOCAL_SIZE"}},
      {&found.node_rank, {"GROUP_RANK"}},
      {&found.num_nodes, {"GROUP_WORLD_SIZE"}},
      {&found.restart_count, {"TORCHELASTIC_RESTART_COUNT", "ACCEL_GENERATION"}},
      {&found.max_restarts, {"TORCHELASTIC_MAX_RESTARTS"}},
      {&found.generation, {"ACCEL_GENERATION"}},
      {&found.master_port, {"MASTER_PORT"}},
  };
  for (const auto& [slot, names] : wanted) {
    Result<std::optional<NamedInt>> number = first_number(lookup, names);
    if (!number) return std::move(number).error();
    *slot = *number;
  }
  return found;
}

Result<void> require_below(const std::optional<NamedInt>& index,
                           const std::optional<NamedInt>& count,
                           int limit,
                           std::string_view count_name) {
  if (!index || index->value < limit) return {};
  std::string expected = "less than ";
  expected += count ? count->name : count_name;
  expected += " (" + std::to_string(limit) + (count ? ")" : ", as it is not set)");
  return invalid(index->name, std::to_string(index->value), expected);
}

Result<void> require_positive(const std::optional<NamedInt>& count) {
  if (!count || count->value > 0) return {};
  return invalid(count->name, "0", "at least 1");
}

// Fills the six counts, deriving those that nothing says.
Result<void> resolve_ranks(const Found& found, WorkerIdentity& identity) {
  for (const auto* count : {&found.world_size, &found.local_world_size, &found.num_nodes}) {
    if (Result<void> ok = require_positive(*count); !ok) return ok;
  }
  const auto value_or = [](const std::optional<NamedInt>& number, int otherwise) {
    return number ? number->value : otherwise;
  };
  identity.world_size = value_or(found.world_size, 1);
  identity.global_rank = value_or(found.rank, 0);
  if (!found.rank && identity.world_size > 1) {
    return Error(ErrorCode::kEnvInvalid,
                 std::string(found.world_size->name) + " is " +
                     std::to_string(identity.world_size) + " but no rank is set",
                 "start the program with accel-launch, or set RANK and LOCAL_RANK too");
  }
  const int even_share = found.num_nodes ? std::max(1, identity.world_size / found.num_nodes->value)
                                         : identity.world_size;
  identity.local_world_size = value_or(found.local_world_size, even_share);
  identity.local_rank =
      value_or(found.local_rank, identity.global_rank % identity.local_world_size);
  identity.num_nodes =
      value_or(found.num_nodes,
               (identity.world_size + identity.local_world_size - 1) / identity.local_world_size);
  identity.node_rank = value_or(found.node_rank, identity.global_rank / identity.local_world_size);

  if (Result<void> ok =
          require_below(found.rank, found.world_size, identity.world_size, "WORLD_SIZE");
      !ok) {
    return ok;
  }
  if (identity.local_world_size > identity.world_size) {
    return invalid(
        found.local_world_size->name,
        std::to_string(identity.local_world_size),
        "at most the number of all processes (" + std::to_string(identity.world_size) + ")");
  }
  if (Result<void> ok = require_below(
          found.local_rank, found.local_world_size, identity.local_world_size, "LOCAL_WORLD_SIZE");
      !ok) {
    return ok;
  }
  return require_below(found.node_rank, found.num_nodes, identity.num_nodes, "GROUP_WORLD_SIZE");
}

Result<void> resolve_store(const Found& found, const EnvLookup& lookup, WorkerIdentity& identity) {
  if (std::optional<std::string> address = lookup("MASTER_ADDR"); address && !address->empty()) {
    identity.master_addr = *std::move(address);
  } else if (identity.num_nodes > 1) {
    return Error(ErrorCode::kEnvInvalid,
                 "MASTER_ADDR is not set, and the " + std::to_string(identity.world_size) +
                     " processes are on " + std::to_string(identity.num_nodes) + " machines",
                 "set MASTER_ADDR to the address of the machine of rank 0");
  }
  if (found.master_port) {
    if (found.master_port->value < 1 || found.master_port->value > kMaxPort) {
      return invalid(
          "MASTER_PORT", std::to_string(found.master_port->value), "a port from 1 to 65535");
    }
    identity.master_port = static_cast<std::uint16_t>(found.master_port->value);
  }
  identity.use_agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return {};
}

constexpr EnvVariable kVariables[] = {
    {"RANK",
     "accel-launch, torchrun",
     "libaccel, torch",
     "int",
     "Rank among all processes of the job."},
    {"WORLD_SIZE",
     "accel-launch, torchrun",
     "libaccel, torch",
     "int",
     "Number of processes of the job."},
    {"LOCAL_RANK",
     "accel-launch, torchrun",
     "libaccel, torch",
     "int",
     "Rank among the processes of this machine; 0 with --virtual_local_rank."},
    {"ACCEL_LOCAL_RANK",
     "accel-launch with `--virtual_local_rank`",
     "libaccel",
     "int",
     "Rank among the processes of this machine, where LOCAL_RANK is 0 for all."},
    {"LOCAL_WORLD_SIZE",
     "accel-launch, torchrun",
     "libaccel, torch",
     "int",
     "Number of processes on this machine."},
    {"GROUP_RANK", "accel-launch, torchrun", "libaccel, torch", "int", "Rank of this machine."},
    {"GROUP_WORLD_SIZE", "accel-launch, torchrun", "libaccel, torch", "int", "Number of machines."},
    {"ROLE_NAME", "accel-launch, torchrun", "torch", "text", "Name of the role, `default`."},
    {"ROLE_RANK",
     "accel-launch, torchrun",
     "torch",
     "int",
     "Rank among the processes of the role."},
    {"ROLE_WORLD_SIZE",
     "accel-launch, torchrun",
     "torch",
     "int",
     "Number of processes of the role."},
    {"MASTER_ADDR",
     "accel-launch, torchrun",
     "libaccel, torch",
     "host name or address",
     "Where the store listens."},
    {"MASTER_PORT",
     "accel-launch, torchrun",
     "libaccel, torch",
     "1 to 65535",
     "Port of the store; 29500 when nothing says it."},
    {"TORCHELASTIC_USE_AGENT_STORE",
     "accel-launch, torchrun",
     "libaccel, torch",
     "exactly `True`, or anything else",
     "`True`: the supervisor hosts the store, and rank 0 connects as a client too."},
    {"TORCHELASTIC_RESTART_COUNT",
     "accel-launch, torchrun",
     "libaccel, torch",
     "int",
     "Restarts of the job so far; 0 at first."},
    {"TORCHELASTIC_MAX_RESTARTS",
     "accel-launch, torchrun",
     "libaccel, torch",
     "int",
     "Restarts that are allowed, as `--max_restarts`."},
    {"TORCHELASTIC_RUN_ID",
     "accel-launch, torchrun",
     "torch",
     "text",
     "Name of the run; its presence tells torch that a supervisor started it."},
    {"TORCHELASTIC_ERROR_FILE",
     "accel-launch, torchrun",
     "libaccel, torch",
     "path",
     "Where a worker writes why it failed, as JSON; the report shows it."},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING",
     "accel-launch, torchrun",
     "torch",
     "int",
     "`1` unless it was set before: a failed NCCL collective ends the process."},
    {"ACCEL_JOB_ID",
     "accel-launch",
     "libaccel, accel-shim",
     "text of at most 64 characters",
     "Name of the job; leftover processes of a job are found by it."},
    {"ACCEL_JOB_INSTANCE",
     "accel-launch, accel-agent",
     "accel-shim",
     "32 hexadecimal digits",
     "Tells jobs of the same name apart; leftover processes are those of this one alone."},
    {"ACCEL_GENERATION",
     "accel-launch",
     "libaccel",
     "int",
     "Number of this life of all workers, from 0. On one machine it is the number of restarts."},
    {"ACCEL_NODE_ID",
     "accel-agent",
     "accel-shim",
     "text of at most 64 characters",
     "Name of the machine among those of the job; leftover processes of a node are found by it."},
    {"ACCEL_CHANNEL",
     "accel-launch",
     "libaccel",
     "`<version>:<memfd>:<socket>`",
     "The two inherited descriptors of the worker channel."},
    {"ACCEL_SHIM",
     "the user",
     "accel-launch",
     "path",
     "The accel-shim program, when it is not beside accel-launch."},
    {"ACCEL_JOB_TOKEN",
     "the user",
     "accel-launch",
     "text of at least 16 characters",
     "Several machines without a daemon: launchers show each other that they know it. Workers do "
     "not get it."},
    {"ACCEL_JOB_TOKEN_FILE",
     "the user",
     "accel-launch",
     "path",
     "The file of mode 0600 with it, when ACCEL_JOB_TOKEN is not set."},
    {"ACCELERATE_USE_CPU",
     "accel-launch",
     "libaccel, accelerate",
     "True/False",
     "Stay on the CPU although there are GPUs: `--cpu` or `use_cpu`."},
    {"ACCELERATE_MIXED_PRECISION",
     "accel-launch",
     "libaccel, accelerate",
     "no, fp16, bf16 or fp8",
     "Mixed precision of an Accelerator that names none."},
    {"ACCELERATE_DYNAMO_BACKEND",
     "accel-launch",
     "accelerate",
     "upper case: NO, INDUCTOR, ...",
     "Backend of torch.compile; Python only."},
    {"ACCELERATE_DYNAMO_MODE",
     "accel-launch",
     "accelerate",
     "default, reduce-overhead or max-autotune",
     "Mode of torch.compile; Python only."},
    {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "accel-launch", "accelerate", "True/False", "Python only."},
    {"ACCELERATE_DYNAMO_USE_DYNAMIC", "accel-launch", "accelerate", "True/False", "Python only."},
    {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
     "accel-launch",
     "accelerate",
     "True/False",
     "Python only."},
    {"ACCELERATE_DEBUG_MODE",
     "accel-launch",
     "libaccel, accelerate",
     "`true`, or not set",
     "Check the shapes of collectives over all ranks: `--debug`."},
    {"ACCELERATE_CPU_AFFINITY",
     "accel-launch",
     "accelerate",
     "`1`, or not set",
     "`--enable_cpu_affinity`; accel-launch has already bound the worker."},
    {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
     "the user",
     "libaccel, accelerate",
     "int",
     "Steps of gradient accumulation of an Accelerator that names none."},
    {"ACCELERATE_USE_FSDP",
     "accel-launch, the user",
     "libaccel, accelerate",
     "`true`, or not set",
     "Divide models over the ranks as the FSDP_* say: `docs/sharding.md`."},
    {"ACCELERATE_USE_DEEPSPEED",
     "the user",
     "libaccel, accelerate",
     "`true`, or not set",
     "Divide models over the ranks by the stages of ZeRO: `docs/sharding.md`."},
    {"ACCELERATE_DEEPSPEED_ZERO_STAGE",
     "the user",
     "libaccel, accelerate",
     "0 to 3",
     "What is divided."},
    {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
     "the user",
     "libaccel, accelerate",
     "none",
     "libaccel refuses others."},
    {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
     "the user",
     "libaccel, accelerate",
     "none",
     "libaccel refuses others."},
    {"ACCELERATE_DEEPSPEED_CONFIG_FILE",
     "the user",
     "libaccel, accelerate",
     "a path, or not set",
     "libaccel refuses a file of DeepSpeed's."},
    {"ACCELERATE_GRADIENT_CLIPPING",
     "the user",
     "libaccel, accelerate",
     "0, or not set",
     "libaccel refuses others under DeepSpeed: `clip_grad_norm_` clips."},
    {"FSDP_VERSION",
     "accel-launch, the user",
     "libaccel, accelerate",
     "1 or 2",
     "Which of the next two holds."},
    {"FSDP_SHARDING_STRATEGY",
     "accel-launch, the user",
     "libaccel, accelerate",
     "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2, or 1 to 5",
     "What is divided."},
    {"FSDP_RESHARD_AFTER_FORWARD",
     "accel-launch, the user",
     "libaccel, accelerate",
     "true/false",
     "FULL_SHARD or SHARD_GRAD_OP, in version 2."},
    {"FSDP_AUTO_WRAP_POLICY",
     "accel-launch, the user",
     "libaccel, accelerate",
     "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP",
     "Which parameters form a unit."},
    {"FSDP_TRANSFORMER_CLS_TO_WRAP",
     "accel-launch, the user",
     "libaccel, accelerate",
     "comma list",
     "Classes of modules for TRANSFORMER_BASED_WRAP."},
    {"FSDP_MIN_NUM_PARAMS",
     "accel-launch, the user",
     "libaccel, accelerate",
     "int",
     "Fewest parameters of a unit for SIZE_BASED_WRAP."},
    {"FSDP_IGNORED_MODULES",
     "accel-launch, the user",
     "libaccel, accelerate",
     "regular expression",
     "Names of modules that stay whole on every rank."},
    {"FSDP_SYNC_MODULE_STATES",
     "accel-launch, the user",
     "libaccel, accelerate",
     "true/false",
     "Send rank 0's parameters and buffers to all ranks."},
    {"FSDP_CPU_RAM_EFFICIENT_LOADING",
     "accel-launch, the user",
     "libaccel, accelerate",
     "true/false",
     "Rank 0 alone holds a model before prepare()."},
    {"FSDP_BACKWARD_PREFETCH",
     "accel-launch, the user",
     "libaccel, accelerate",
     "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH",
     "Whether FULL_SHARD over nodes fetches units ahead."},
    {"FSDP_FORWARD_PREFETCH",
     "accel-launch, the user",
     "libaccel, accelerate",
     "true/false",
     "True fetches ahead whatever FSDP_BACKWARD_PREFETCH says."},
    {"FSDP_STATE_DICT_TYPE",
     "accel-launch, the user",
     "libaccel, accelerate",
     "FULL_STATE_DICT, SHARDED_STATE_DICT, LOCAL_STATE_DICT, or 1 to 3",
     "Who writes the files of a checkpoint."},
    {"ACCELERATE_LOG_LEVEL",
     "the user",
     "libaccel, accelerate",
     "debug, info, warning, error or critical",
     "Level of loggers that name none."},
    {"CUDA_VISIBLE_DEVICES",
     "accel-launch with `--gpu_ids` or `--virtual_local_rank`",
     "libaccel, torch",
     "comma list",
     "The GPUs that the workers may use."},
    {"OMP_NUM_THREADS",
     "accel-launch unless set",
     "libaccel, torch",
     "int",
     "Physical cores of the worker's share, at least 1; `--num_cpu_threads_per_process` overrides "
     "it."},
    {"MKL_NUM_THREADS", "accel-launch unless set", "MKL", "int", "As OMP_NUM_THREADS."},
    {"OPENBLAS_NUM_THREADS", "accel-launch unless set", "OpenBLAS", "int", "As OMP_NUM_THREADS."},
    {"NUMEXPR_NUM_THREADS", "accel-launch unless set", "numexpr", "int", "As OMP_NUM_THREADS."},
    {"KMP_BLOCKTIME",
     "accel-launch unless set",
     "Intel OpenMP",
     "`1`",
     "Idle OpenMP threads sleep after 1 ms."},
    {"PYTHONUNBUFFERED",
     "accel-launch unless set",
     "Python",
     "`1`",
     "Lines appear when they are printed."},
    {"PMI_RANK, OMPI_COMM_WORLD_RANK, MV2_COMM_WORLD_RANK",
     "mpirun",
     "libaccel",
     "int",
     "Read after RANK."},
    {"PMI_SIZE, OMPI_COMM_WORLD_SIZE, MV2_COMM_WORLD_SIZE",
     "mpirun",
     "libaccel",
     "int",
     "Read after WORLD_SIZE."},
    {"MPI_LOCALRANKID, OMPI_COMM_WORLD_LOCAL_RANK, MV2_COMM_WORLD_LOCAL_RANK",
     "mpirun",
     "libaccel",
     "int",
     "Read after LOCAL_RANK."},
    {"MPI_LOCALNRANKS, OMPI_COMM_WORLD_LOCAL_SIZE, MV2_COMM_WORLD_LOCAL_SIZE",
     "mpirun",
     "libaccel",
     "int",
     "Read after LOCAL_WORLD_SIZE."},
    {"HF_HOME, XDG_CACHE_HOME",
     "the user",
     "accel-launch",
     "path",
     "Where the default configuration is: `$HF_HOME/accelerate/default_config.yaml`."},
    {"PYTHON_EXEC, VIRTUAL_ENV, CONDA_PREFIX",
     "the user",
     "accel-launch",
     "path",
     "Which Python runs a script, in this order; then python3 and python on PATH."},
};

}  // namespace

EnvMap render_worker_env(const WorkerIdentity& identity, EnvMode mode) {
  EnvMap env;
  if (!identity.job_id.empty()) {
    env["ACCEL_JOB_ID"] = identity.job_id;
    env["ACCEL_GENERATION"] =
        std::to_string(identity.generation < 0 ? identity.restart_count : identity.generation);
  }
  if (!identity.node_id.empty()) env["ACCEL_NODE_ID"] = identity.node_id;
  if (!identity.instance.empty()) env["ACCEL_JOB_INSTANCE"] = identity.instance;
  if (!identity.channel.empty()) env["ACCEL_CHANNEL"] = identity.channel;
  if (!identity.error_file.empty()) env["TORCHELASTIC_ERROR_FILE"] = identity.error_file;
  if (mode == EnvMode::kSimple) return env;

  env["RANK"] = env["ROLE_RANK"] = std::to_string(identity.global_rank);
  env["WORLD_SIZE"] = env["ROLE_WORLD_SIZE"] = std::to_string(identity.world_size);
  env["LOCAL_RANK"] = std::to_string(identity.local_rank);
  env["LOCAL_WORLD_SIZE"] = std::to_string(identity.local_world_size);
  env["GROUP_RANK"] = std::to_string(identity.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(identity.num_nodes);
  env["ROLE_NAME"] = identity.role;
  env["MASTER_ADDR"] = identity.master_addr;
  env["MASTER_PORT"] = std::to_string(identity.master_port);
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(identity.restart_count);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(identity.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = identity.run_id;
  env["TORCHELASTIC_USE_AGENT_STORE"] = identity.use_agent_store ? "True" : "False";
  return env;
}

Result<WorkerIdentity> parse_worker_env(const EnvLookup& lookup) {
  Result<Found> found = find_numbers(lookup);
  if (!found) return std::move(found).error();
  WorkerIdentity identity;
  if (Result<void> ok = resolve_ranks(*found, identity); !ok) return std::move(ok).error();
  if (Result<void> ok = resolve_store(*found, lookup, identity); !ok) return std::move(ok).error();
  if (found->restart_count) identity.restart_count = found->restart_count->value;
  if (found->max_restarts) identity.max_restarts = found->max_restarts->value;
  if (found->generation) identity.generation = found->generation->value;

  const std::pair<std::string_view, std::string*> texts[] = {
      {"ROLE_NAME", &identity.role},
      {"TORCHELASTIC_RUN_ID", &identity.run_id},
      {"TORCHELASTIC_ERROR_FILE", &identity.error_file},
      {"ACCEL_CHANNEL", &identity.channel},
      {"ACCEL_JOB_ID", &identity.job_id},
      {"ACCEL_NODE_ID", &identity.node_id},
      {"ACCEL_JOB_INSTANCE", &identity.instance},
  };
  for (const auto& [name, slot] : texts) {
    if (std::optional<std::string> text = lookup(name)) *slot = *std::move(text);
  }
  return identity;
}

Result<bool> parse_env_bool(std::string_view name, std::string_view value) {
  std::string lower(value);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  for (std::string_view yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (std::string_view no : {"n", "no", "f", "false", "off", "0"}) {
    if (lower == no) return false;
  }
  return invalid(name, value, "true or false (also yes/no, on/off, 1/0)");
}

EnvLookup process_env() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

std::span<const EnvVariable> env_variables() {
  return kVariables;
}

}  // namespace accel

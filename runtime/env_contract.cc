// The environment contract: identity -> variables -> identity. The table that both are documented by is in
// env_variables.cc.
//
// Reading is wider than writing. A program of libaccel may be started by accel-launch, by torchrun,
// by mpirun or by hand, so every number has a list of names; the first name that holds a value of
// at least 0 wins (launchers use -1 for "not distributed"). What is missing is derived: ranks on a
// node follow one another, so local_rank = global_rank % local_world_size.

#include "accel/env_contract.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/letter_case.h"
#include "runtime/text/number_text.h"

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
    const std::optional<int> number = signed_number<int>(*text);
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
  const std::string lower = lowercase(value);
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

}  // namespace accel

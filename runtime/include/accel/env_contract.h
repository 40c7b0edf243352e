// EnvContract: writes and reads the environment variables of a worker.
//
// The launcher writes a WorkerIdentity to variables; libaccel (and any torchrun-style
// program) reads them. Names and formats are the same as in torchrun and HF Accelerate, so Python
// workers need no change; ACCEL_* are accel's own. docs/reference/env_contract.md is generated from env_variables().
//
// Threads:  pure functions; the caller passes the environment in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel {

using EnvMap = std::map<std::string, std::string>;

// Looks a variable up; std::nullopt when it is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

// The place of a worker in its job. Counts of ranks are counts of processes.
struct WorkerIdentity {
  int global_rank = 0;
  int world_size = 1;
  int local_rank = 0;        // within the node
  int local_world_size = 1;  // workers on this node
  int node_rank = 0;
  int num_nodes = 1;
  int restart_count = 0;  // restarts of the job so far: 0 in the first generation
  int max_restarts = 0;
  int generation = -1;  // ACCEL_GENERATION; -1: the same as restart_count
  std::string role = "default";
  std::string run_id = "none";
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  bool use_agent_store = true;  // the supervisor hosts the store: rank 0 connects as a client too
  std::string error_file;       // TORCHELASTIC_ERROR_FILE; empty when there is none
  std::string channel;   // ACCEL_CHANNEL, "<version>:<memfd>:<socket>"; empty without a supervisor
  std::string job_id;    // ACCEL_JOB_ID; the sweep for orphans finds descendants by it
  std::string node_id;   // ACCEL_NODE_ID; limits the sweep where nodes share a process table
  std::string instance;  // ACCEL_JOB_INSTANCE; the sweep spares other jobs of the same name
};

// Which part of the variables a worker gets.
enum class EnvMode {
  kSimple,       // one process on one machine, as with `accelerate launch`: no RANK, no WORLD_SIZE
  kDistributed,  // the whole torchrun set
};

// The variables of `identity`, and no others.
ACCEL_EXPORT EnvMap render_worker_env(const WorkerIdentity& identity, EnvMode mode);

// Reads the identity; also reads the MPI variables (PMI_*, OMPI_COMM_WORLD_*,
// MV2_COMM_WORLD_*, MPI_LOCALRANKID, MPI_LOCALNRANKS), if RANK etc. are not set. No variable
// means one process. Errors  kEnvInvalid: names the variable, its value and the expected form (also for
// RANK >= WORLD_SIZE).
ACCEL_EXPORT Result<WorkerIdentity> parse_worker_env(const EnvLookup& lookup);

// y/yes/t/true/on/1 and n/no/f/false/off/0, any case. Errors kEnvInvalid naming `name`.
ACCEL_EXPORT Result<bool> parse_env_bool(std::string_view name, std::string_view value);

// The process's own environment.
ACCEL_EXPORT EnvLookup process_env();

struct EnvVariable {
  std::string_view name;
  std::string_view set_by;   // the writer
  std::string_view read_by;  // the reader
  std::string_view format;   // "int", "True/False", ...
  std::string_view meaning;  // one sentence
};
ACCEL_EXPORT std::span<const EnvVariable> env_variables();

}  // namespace accel

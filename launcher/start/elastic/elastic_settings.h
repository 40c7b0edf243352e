// ElasticSettings: what a launch over several nodes, or by an agent, needs beside the workers of this one.
//
// Travels as JSON to libaccel_cluster.so, with the JobSpec of this node.
//
// Threads:  plain values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/result.h>

#include "launcher/flags/etcd_access.h"
#include "launcher/text/program.h"
#include "launcher/workers/allocation_end.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// Who brings the nodes together, and who hosts the coordinator.
enum class Meeting {
  kEndpoint,  // an address that the user gave; its machine's launcher hosts
  kStarter,   // SLURM's batch script: hosts, starts the nodes with srun, is no node itself
  kHostNode,  // the first task of an srun: hosts beside its own part
  kNode,      // another node of a starter or host node
  kAgent,     // the agents: the job is given to the one of this machine, which finds the nodes
};

struct ElasticSettings {
  Meeting meeting = Meeting::kEndpoint;
  int min_nodes = 1;
  int max_nodes = 1;
  std::string
      endpoint;  // "ADDR:PORT" of the coordinator; hosted by the launcher whose address it is
  EtcdAccess
      etcd;  // kEndpoint: its endpoint, unless empty, says who hosts the coordinator, and where
  std::string job = "job";  // the same on every node
  std::string node_id;      // empty: the host's name and our pid
  std::string token_file;
  std::string tls_dir;  // ca.pem, cert.pem, key.pem
  bool insecure = false;
  int node_index = -1;                      // the index this node would like; -1: any
  std::vector<std::string> expected_hosts;  // named while they are missing
  std::string job_folder;      // but kEndpoint: see launcher/cluster/meeting/job_folder.h
  std::string launch_address;  // kNode: of the machine whose srun started us; may be empty
  std::vector<std::string> node_command;  // kStarter: what each node runs
  int join_timeout_seconds = 600;
  supervisor::Milliseconds last_call{3'000};  // for more nodes once min_nodes are there
  bool hard_fencing = false;
  supervisor::Milliseconds lease{10'000};  // hard fencing
  AllocationEnd allocation_end;
  bool quiet = false;
  Program program = Program::kLaunch;  // whose words messages use
};

// "4" or "2:4". Errors  kInvalidArgument.
[[nodiscard]] Result<std::pair<int, int>> parse_num_nodes(std::string_view text);

struct ElasticRequest {
  ElasticSettings settings;
  supervisor::JobSpec spec;
};
[[nodiscard]] std::string to_json(const ElasticSettings& settings, const supervisor::JobSpec& spec);
// Errors  kProtocol.
[[nodiscard]] Result<ElasticRequest> elastic_request_from_json(std::string_view json);

}  // namespace accel::launcher

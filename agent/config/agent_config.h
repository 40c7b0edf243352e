// AgentConfig: what configs/agent.yaml and the command line say.
//
// Threads:  plain values; load_agent_config() reads one file.
// Source:   configs/agent.yaml names every key with its default; a test compares it with agent_config_keys().
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::agent {

class RevocationList;

struct TlsFiles {
  std::string authority;    // PEM; who signs the certificates of the cluster
  std::string certificate;  // PEM; this node's
  std::string key;          // PEM, mode 0600
  std::string crl = {};     // PEM; the certificates that the authority has taken back; empty: none
  std::shared_ptr<RevocationList> revoked = {};  // of crl, by open_revocations()
};

// etcd, which keeps the coordinator's records and says which agent hosts it.
struct EtcdSettings {
  std::vector<std::string> endpoints;  // "ADDR:PORT"; none: no etcd
  TlsFiles tls;  // no authority: without TLS, loopback only; no certificate: etcd asks for none
};

struct AgentConfig {
  std::string cluster = "default";  // the first part of certificate names
  std::string node_id;              // empty: the host's name
  std::string state_dir = "/var/lib/accel";
  std::string runtime_dir = "/run/accel";  // agent.sock and tickets.sock
  std::string socket_group;                // who may connect; see choose_socket_access()
  std::string listen;                      // "ADDR:PORT"; empty: no TCP
  bool insecure = false;                   // no TLS on TCP: loopback addresses only
  TlsFiles tls;
  std::string coordinator;  // "ADDR:PORT" of the agent that hosts it; empty: jobs on one node alone
  int slots = 0;  // workers of jobs of many nodes at a time; 0: one a GPU, else one a core
  EtcdSettings etcd;
  std::string token_file;  // 0600; the token of jobs whose nodes join over TCP
  bool allow_root = false;
  std::vector<std::string> allow_users;                          // empty: everybody
  std::map<std::string, std::vector<std::string>> remote_users;  // certificate name -> users
  std::string metrics_listen;                // "ADDR:PORT" of /metrics and /healthz; empty: nowhere
  bool metrics_beyond_loopback = false;      // metrics_listen may be another address than loopback
  std::string dashboard_listen;              // "ADDR:PORT" of the page; empty: nowhere
  bool dashboard_beyond_loopback = false;    // dashboard_listen may be another address
  std::string events_file = "events.jsonl";  // below state_dir, or absolute; empty: none
  int max_jobs = 64;                         // in all
  int max_jobs_each = 0;                     // of one user; 0: as many as in all
  int max_cluster_jobs = 1000;     // over several nodes, where this agent hosts the coordinator
  int max_cluster_jobs_each = 0;   // of one user; 0: half of them
  int job_pids = 0;                // processes and threads of one job; 0: no limit
  int max_connections = 4096;      // over TCP, in all
  int max_connections_each = 512;  // from one address
  int keep_finished = 256;         // ended jobs that `accel status` still shows
  std::string log_dir;             // empty: logs below state_dir
  std::chrono::milliseconds drain_grace{30'000};  // on SIGTERM, until the jobs are killed
  std::chrono::milliseconds hold{
      60'000};                 // jobs live so long without an agent; 0: they end with it
  bool adopts_damaged = true;  // damaged_jobs: adopt
  std::chrono::milliseconds beat_every{1'000};
  std::map<std::string, std::string> labels;
};

struct AgentConfigKey {
  std::string_view name;
  std::string_view meaning;
};
[[nodiscard]] std::span<const AgentConfigKey> agent_config_keys();

// Errors  kConfigSyntax, kConfigUnknownKey, kConfigInvalidValue: path, line, key, what was expected; all faults.
[[nodiscard]] Result<AgentConfig> parse_agent_config(std::string_view text,
                                                     const std::string& path);

// Errors  also kConfigUnreadable.
[[nodiscard]] Result<AgentConfig> load_agent_config(const std::string& path);

// Fills in what follows from the machine, and checks what one key alone does not show (TCP without TLS, an address
// that is none). Errors  kConfigInvalidValue.
[[nodiscard]] Result<AgentConfig> complete_agent_config(AgentConfig config);

// [A-Za-z0-9_.-]{1,64}: what a job's or node's id may be, and so a part of a path or a certificate's name.
[[nodiscard]] bool is_valid_id(std::string_view id);

}  // namespace accel::agent

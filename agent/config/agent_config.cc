#include "agent/config/agent_config.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <sstream>

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"

namespace accel::agent {
namespace {

using supervisor::parse_tcp_endpoint;

constexpr std::array kKeys = {
    AgentConfigKey{"cluster", "the name of the cluster; the first part of certificate names"},
    AgentConfigKey{"node_id", "the name of this node; the host's name when empty"},
    AgentConfigKey{"state_dir", "the folder of what outlives the agent"},
    AgentConfigKey{"runtime_dir", "the folder of the sockets for local users"},
    AgentConfigKey{"socket_group", "the group whose members may use the sockets, or *"},
    AgentConfigKey{"listen", "the TCP address for other nodes and operators"},
    AgentConfigKey{"insecure", "TCP without TLS; loopback only"},
    AgentConfigKey{"tls", "authority, certificate and key, and the list of revoked certificates"},
    AgentConfigKey{"coordinator", "the agent that hosts the coordinator of jobs of many nodes"},
    AgentConfigKey{"slots", "workers of jobs of many nodes that this node runs at a time"},
    AgentConfigKey{
        "etcd",
        "endpoints, and authority, certificate and key, of the etcd behind the coordinator"},
    AgentConfigKey{"token_file", "the token that nodes of this cluster prove"},
    AgentConfigKey{"allow_root", "whether uid 0 may run jobs as itself"},
    AgentConfigKey{"allow_users", "the users who may run jobs"},
    AgentConfigKey{"remote_users", "which certificates may run jobs, as whom"},
    AgentConfigKey{"metrics_listen", "the address of /metrics and /healthz, over plain HTTP"},
    AgentConfigKey{"metrics_beyond_loopback", "whether metrics_listen may be any address"},
    AgentConfigKey{"dashboard_listen", "the address of the page that shows jobs, over plain HTTP"},
    AgentConfigKey{"dashboard_beyond_loopback", "whether dashboard_listen may be any address"},
    AgentConfigKey{"events_file", "where what happens to jobs is written, as lines of JSON"},
    AgentConfigKey{"max_jobs", "jobs at the same time"},
    AgentConfigKey{"max_jobs_each", "jobs of one user at the same time"},
    AgentConfigKey{"max_cluster_jobs", "jobs over several nodes at the same time"},
    AgentConfigKey{"max_cluster_jobs_each", "jobs over several nodes of one user"},
    AgentConfigKey{"job_pids", "processes and threads of one job, held by its cgroup"},
    AgentConfigKey{"max_connections", "TCP connections at the same time"},
    AgentConfigKey{"max_connections_each", "TCP connections from one address at the same time"},
    AgentConfigKey{"keep_finished", "ended jobs that are still shown"},
    AgentConfigKey{"log_dir", "where the output of jobs goes"},
    AgentConfigKey{"drain_grace_seconds", "how long jobs have when the agent is told to end"},
    AgentConfigKey{"hold_seconds", "how long jobs live without an agent"},
    AgentConfigKey{"damaged_jobs", "what becomes of jobs whose record is damaged"},
    AgentConfigKey{"beat_every_ms", "the pace of heartbeats between agent and coordinator"},
    AgentConfigKey{"labels", "free words about this node"},
};

// Reads the keys of one mapping and collects what is wrong with them.
class KeyReader {
 public:
  KeyReader(const YAML::Node& map, std::string path, std::vector<Error>& faults)
      : map_(map), path_(std::move(path)), faults_(faults) {}

  void fault(const YAML::Node& at, const std::string& key, const std::string& expected) {
    faults_.emplace_back(
        ErrorCode::kConfigInvalidValue,
        path_ + ":" + std::to_string(at.Mark().line + 1) + ": " + key + " must be " + expected);
  }

  void read(const std::string& key, std::string& out) {
    with(key, [&](const YAML::Node& node) {
      if (node.IsNull()) return out.clear();
      if (!node.IsScalar()) return fault(node, key, "a text");
      out = node.Scalar();
    });
  }
  void read(const std::string& key, bool& out) {
    with(key, [&](const YAML::Node& node) {
      if (!YAML::convert<bool>::decode(node, out)) fault(node, key, "true or false");
    });
  }
  void read(const std::string& key, int& out, int low, int high) {
    with(key, [&](const YAML::Node& node) {
      int value = 0;
      if (!YAML::convert<int>::decode(node, value) || value < low || value > high) {
        return fault(node,
                     key,
                     "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
      }
      out = value;
    });
  }
  void read(const std::string& key, std::vector<std::string>& out) {
    with(key, [&](const YAML::Node& node) {
      if (node.IsNull()) return out.clear();
      if (!node.IsSequence()) return fault(node, key, "a list of texts");
      out.clear();
      for (const auto& item : node) {
        if (!item.IsScalar()) return fault(item, key, "a list of texts");
        out.push_back(item.Scalar());
      }
    });
  }
  void with(const std::string& key, const std::function<void(const YAML::Node&)>& read) {
    const YAML::Node node = map_[key];
    if (node.IsDefined()) read(node);
  }

 private:
  const YAML::Node& map_;
  std::string path_;
  std::vector<Error>& faults_;
};

bool is_known_key(const std::string& name) {
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const auto& key) { return key.name == name; });
}

void read_tls(KeyReader& reader,
              const std::string& path,
              std::vector<Error>& faults,
              TlsFiles& tls) {
  reader.with("tls", [&](const YAML::Node& node) {
    if (node.IsNull()) return;
    if (!node.IsMap())
      return reader.fault(node, "tls", "a mapping of authority, certificate, key and crl");
    for (const auto& entry : node) {
      const std::string name = entry.first.Scalar();
      if (name == "authority" || name == "certificate" || name == "key" || name == "crl") continue;
      faults.emplace_back(ErrorCode::kConfigUnknownKey,
                          path + ":" + std::to_string(entry.first.Mark().line + 1) + ": tls." +
                              name + " is not known");
    }
    KeyReader inner(node, path, faults);
    inner.read("authority", tls.authority);
    inner.read("certificate", tls.certificate);
    inner.read("key", tls.key);
    inner.read("crl", tls.crl);
  });
}

void read_etcd(KeyReader& reader,
               const std::string& path,
               std::vector<Error>& faults,
               EtcdSettings& etcd) {
  reader.with("etcd", [&](const YAML::Node& node) {
    if (node.IsNull()) return;
    if (!node.IsMap())
      return reader.fault(node, "etcd", "a mapping of endpoints, authority, certificate and key");
    for (const auto& entry : node) {
      const std::string name = entry.first.Scalar();
      if (name == "endpoints" || name == "authority" || name == "certificate" || name == "key")
        continue;
      faults.emplace_back(ErrorCode::kConfigUnknownKey,
                          path + ":" + std::to_string(entry.first.Mark().line + 1) + ": etcd." +
                              name + " is not known");
    }
    KeyReader inner(node, path, faults);
    inner.read("endpoints", etcd.endpoints);
    inner.read("authority", etcd.tls.authority);
    inner.read("certificate", etcd.tls.certificate);
    inner.read("key", etcd.tls.key);
  });
}

void read_maps(KeyReader& reader, AgentConfig& config) {
  reader.with("remote_users", [&](const YAML::Node& node) {
    if (node.IsNull()) return;
    if (!node.IsMap())
      return reader.fault(node, "remote_users", "a mapping of certificate names to lists of users");
    for (const auto& entry : node) {
      if (!entry.second.IsSequence())
        return reader.fault(entry.second, "remote_users", "lists of users");
      for (const auto& user : entry.second)
        config.remote_users[entry.first.Scalar()].push_back(user.Scalar());
    }
  });
  reader.with("labels", [&](const YAML::Node& node) {
    if (node.IsNull()) return;
    if (!node.IsMap()) return reader.fault(node, "labels", "a mapping of texts");
    for (const auto& entry : node) {
      if (!entry.second.IsScalar())
        return reader.fault(entry.second, "labels", "a mapping of texts");
      config.labels[entry.first.Scalar()] = entry.second.Scalar();
    }
  });
}

AgentConfig read_keys(const YAML::Node& root, const std::string& path, std::vector<Error>& faults) {
  AgentConfig config;
  for (const auto& entry : root) {
    const std::string name = entry.first.Scalar();
    if (is_known_key(name)) continue;
    faults.emplace_back(
        ErrorCode::kConfigUnknownKey,
        path + ":" + std::to_string(entry.first.Mark().line + 1) + ": " + name + " is not known",
        "remove it, or correct its spelling; configs/agent.yaml lists every key");
  }
  KeyReader reader(root, path, faults);
  reader.read("cluster", config.cluster);
  reader.read("node_id", config.node_id);
  reader.read("state_dir", config.state_dir);
  reader.read("runtime_dir", config.runtime_dir);
  reader.read("socket_group", config.socket_group);
  reader.read("listen", config.listen);
  reader.read("insecure", config.insecure);
  read_tls(reader, path, faults, config.tls);
  reader.read("coordinator", config.coordinator);
  reader.read("slots", config.slots, 0, 4096);
  read_etcd(reader, path, faults, config.etcd);
  reader.read("token_file", config.token_file);
  reader.read("allow_root", config.allow_root);
  reader.read("allow_users", config.allow_users);
  read_maps(reader, config);
  reader.read("metrics_listen", config.metrics_listen);
  reader.read("metrics_beyond_loopback", config.metrics_beyond_loopback);
  reader.read("dashboard_listen", config.dashboard_listen);
  reader.read("dashboard_beyond_loopback", config.dashboard_beyond_loopback);
  reader.read("events_file", config.events_file);
  reader.read("max_jobs", config.max_jobs, 1, 4096);
  reader.read("max_jobs_each", config.max_jobs_each, 0, 4096);
  reader.read("max_cluster_jobs", config.max_cluster_jobs, 8, 10'000);
  reader.read("max_cluster_jobs_each", config.max_cluster_jobs_each, 0, 10'000);
  reader.read("job_pids", config.job_pids, 0, 4'194'304);
  reader.read("max_connections", config.max_connections, 8, 1'000'000);
  reader.read("max_connections_each", config.max_connections_each, 8, 1'000'000);
  reader.read("keep_finished", config.keep_finished, 0, 100'000);
  reader.read("log_dir", config.log_dir);
  int drain_seconds = static_cast<int>(config.drain_grace.count() / 1000);
  reader.read("drain_grace_seconds", drain_seconds, 0, 86'400);
  config.drain_grace = std::chrono::seconds(drain_seconds);
  int hold_seconds = static_cast<int>(config.hold.count() / 1000);
  reader.read("hold_seconds", hold_seconds, 0, 86'400);
  config.hold = std::chrono::seconds(hold_seconds);
  reader.with("damaged_jobs", [&](const YAML::Node& node) {
    const std::string word = node.IsScalar() ? node.Scalar() : "";
    if (word != "adopt" && word != "end") return reader.fault(node, "damaged_jobs", "adopt or end");
    config.adopts_damaged = word == "adopt";
  });
  int beat_ms = static_cast<int>(config.beat_every.count());
  reader.read("beat_every_ms", beat_ms, 50, 60'000);
  config.beat_every = std::chrono::milliseconds(beat_ms);
  return config;
}

// "10.0.0.7:2379", "etcd-1.example:2379"
bool is_endpoint(const std::string& text) {
  const auto [host, port] = split_endpoint(text);
  return !host.empty() && number_of<std::uint16_t>(port.value_or("")).value_or(0) > 0 &&
         text.find('/') == std::string::npos;
}

// The first fault, with the others as its "also" lines.
Error first_with_others(std::vector<Error> faults) {
  Error first = std::move(faults.front());
  for (std::size_t i = 1; i < faults.size(); ++i) first.with_detail("also", faults[i].message());
  return first;
}

Error invalid(std::string message, std::string remedy = {}) {
  return Error(ErrorCode::kConfigInvalidValue, std::move(message), std::move(remedy));
}

std::string host_id() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string id = std::string(name).substr(0, 64);
  for (char& c : id) {
    if (!is_valid_id(std::string_view(&c, 1))) c = '-';
  }
  return id.empty() ? "node" : id;
}

}  // namespace

std::span<const AgentConfigKey> agent_config_keys() {
  return kKeys;
}

bool is_valid_id(std::string_view id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  };
  return !id.empty() && id.size() <= 64 && id != "." && id != ".." &&
         std::all_of(id.begin(), id.end(), allowed);
}

Result<AgentConfig> parse_agent_config(std::string_view text, const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::Load(std::string(text));
    if (root.IsNull()) return AgentConfig();
    if (!root.IsMap())
      return Error(ErrorCode::kConfigSyntax, path + " is not a mapping of keys to values");
    std::vector<Error> faults;
    AgentConfig config = read_keys(root, path, faults);
    if (!faults.empty()) return first_with_others(std::move(faults));
    return config;
  } catch (const YAML::Exception& error) {
    return Error(ErrorCode::kConfigSyntax,
                 path + ":" + std::to_string(error.mark.line + 1) + ": " + error.msg);
  }
}

Result<AgentConfig> load_agent_config(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) {
    return Error(ErrorCode::kConfigUnreadable,
                 path + " cannot be read: " + errno_text(errno),
                 "check the path given with --config and its permissions");
  }
  return parse_agent_config(text.str(), path);
}

namespace {

// Who may ask for jobs of many nodes vouches for users: that takes certificates, or a token among the processes of one
// machine and one user.
Result<void> check_coordinator(const AgentConfig& config) {
  if (config.coordinator.empty()) return {};
  const auto address = parse_tcp_endpoint(config.coordinator);
  if (!address)
    return invalid("coordinator: " + address.error().message(), address.error().remedy());
  if (address->port() == 0)
    return invalid("coordinator " + config.coordinator + " has no port",
                   "give the `listen` address of the agent that hosts it");
  if (config.listen.empty()) {
    return invalid("coordinator needs listen: other nodes ask this one for the output of its ranks",
                   "set listen to an address of this node, as 10.0.0.7:29400");
  }
  if (!config.insecure) return {};
  if (!address->address().is_loopback()) {
    return invalid(
        "insecure is allowed on loopback addresses only, and coordinator is " + config.coordinator,
        "use TLS: `accel-agent init-tls` makes the certificates");
  }
  if (::geteuid() == 0) {
    return invalid("an agent of root does not take jobs of many nodes without certificates",
                   "use TLS: `accel-agent init-tls` makes the certificates");
  }
  if (config.token_file.empty()) {
    return invalid("coordinator with insecure needs token_file",
                   "write a token into a file of mode 0600, or use TLS");
  }
  return {};
}

}  // namespace

namespace {

Result<void> check_etcd(const AgentConfig& config) {
  const EtcdSettings& etcd = config.etcd;
  if (etcd.endpoints.empty()) return {};
  for (const std::string& endpoint : etcd.endpoints) {
    if (!is_endpoint(endpoint))
      return invalid("etcd.endpoints: '" + endpoint + "' is not of the form ADDR:PORT",
                     "give 10.0.0.7:2379, without a scheme; TLS is on when etcd.authority is set");
    const auto address = parse_tcp_endpoint(endpoint);
    if (etcd.tls.authority.empty() && (!address || !address->address().is_loopback())) {
      return invalid(
          "etcd without TLS is allowed on loopback addresses only, and an endpoint is " + endpoint,
          "set etcd.authority, and etcd.certificate and etcd.key when etcd asks for them");
    }
  }
  if (etcd.tls.certificate.empty() != etcd.tls.key.empty())
    return invalid("etcd.certificate and etcd.key belong together, and one is not set");
  if (config.listen.empty()) {
    return invalid("etcd needs listen: by it other agents reach this one when it leads",
                   "set listen to an address of this machine, as 10.0.0.7:29400");
  }
  const auto listen = parse_tcp_endpoint(config.listen);
  const bool is_any = listen && listen->address().is_unspecified();
  if (!listen || is_any || listen->port() == 0) {
    return invalid(
        "with etcd, listen must be an address by which other agents reach this one, and is " +
        config.listen);
  }
  return {};
}

// What is served without TLS: "metrics_listen" is allowed beyond loopback by "metrics_beyond_loopback".
Result<void> check_plain_http(const std::string& what,
                              const std::string& listen,
                              bool may_be_anywhere) {
  if (listen.empty()) return {};
  const std::string key = what + "_listen";
  const auto address = parse_tcp_endpoint(listen);
  if (!address) return invalid(key + ": " + address.error().message(), address.error().remedy());
  if (!address->address().is_loopback() && !may_be_anywhere) {
    return invalid(
        "there is no TLS for " + what + ", and " + key + " is " + listen +
            ", which is not a loopback address",
        "use 127.0.0.1, or set " + what + "_beyond_loopback where the network is trusted");
  }
  return {};
}

}  // namespace

Result<AgentConfig> complete_agent_config(AgentConfig config) {
  if (config.node_id.empty()) config.node_id = host_id();
  if (config.log_dir.empty()) config.log_dir = config.state_dir + "/logs";
  if (!config.events_file.empty() && config.events_file.front() != '/')
    config.events_file = config.state_dir + "/" + config.events_file;
  for (const auto& [key, id] :
       {std::pair{"node_id", &config.node_id}, {"cluster", &config.cluster}}) {
    if (!is_valid_id(*id))
      return invalid(std::string(key) + " '" + *id + "' is not of the form [A-Za-z0-9_.-]{1,64}");
  }
  for (const auto& [key, path] : {std::pair{"state_dir", &config.state_dir},
                                  {"runtime_dir", &config.runtime_dir},
                                  {"log_dir", &config.log_dir}}) {
    if (!path->starts_with('/'))
      return invalid(std::string(key) + " '" + *path + "' is not an absolute path");
  }
  if (config.max_connections_each > config.max_connections) {
    return invalid("max_connections_each is " + std::to_string(config.max_connections_each) +
                       ", and max_connections is only " + std::to_string(config.max_connections),
                   "one address may have at most as many as there are in all");
  }
  if (auto checked =
          check_plain_http("metrics", config.metrics_listen, config.metrics_beyond_loopback);
      !checked)
    return std::move(checked).error();
  if (auto checked =
          check_plain_http("dashboard", config.dashboard_listen, config.dashboard_beyond_loopback);
      !checked)
    return std::move(checked).error();
  if (auto checked = check_etcd(config); !checked) return std::move(checked).error();
  // The agents that take part in the election find the leader by way of themselves.
  if (!config.etcd.endpoints.empty() && config.coordinator.empty())
    config.coordinator = config.listen;
  if (auto checked = check_coordinator(config); !checked) return std::move(checked).error();
  const bool has_tls =
      !config.tls.authority.empty() && !config.tls.certificate.empty() && !config.tls.key.empty();
  if (!config.coordinator.empty() && !config.insecure && !has_tls) {
    return invalid("coordinator needs tls.authority, tls.certificate and tls.key",
                   "make them with `accel-agent init-tls`");
  }
  if (config.listen.empty()) return config;
  const auto address = parse_tcp_endpoint(config.listen);
  if (!address) return invalid("listen: " + address.error().message(), address.error().remedy());
  if (config.insecure && !address->address().is_loopback()) {
    return invalid("insecure is allowed on loopback addresses only, and listen is " + config.listen,
                   "use TLS: `accel-agent init-tls` makes the certificates");
  }
  if (!config.insecure && !has_tls) {
    return invalid(
        "listen needs tls.authority, tls.certificate and tls.key",
        "make them with `accel-agent init-tls`, or use --insecure on a loopback address");
  }
  return config;
}

}  // namespace accel::agent

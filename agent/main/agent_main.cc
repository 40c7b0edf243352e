// accel-agent: runs the jobs of this node's users, and takes part in jobs of many nodes.

#include <csignal>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "agent/main/agent.h"
#include "agent/tls/revocation_list.h"
#include "agent/tls/tls_authority.h"

#ifndef ACCEL_VERSION
#error "ACCEL_VERSION comes from the build"
#endif

namespace {

using accel::Error;
using accel::Result;
using accel::agent::AgentConfig;

constexpr const char* kDefaultConfig = "/etc/accel/agent.yaml";

struct Flags {
  accel::agent::TlsRequest tls;
  std::string config;
  std::string listen;
  std::string state_dir;
  bool insecure = false;
  bool revoke = false;
  bool check = false;
  bool foreground = false;
};

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.render("accel-agent").c_str());
  return accel::error_info(error.code()).exit_status;
}

// The file (the default one only when it is there), the command line on top of it.
Result<AgentConfig> load(const Flags& flags) {
  AgentConfig config;
  std::string path = flags.config;
  if (path.empty() && ::access(kDefaultConfig, F_OK) == 0) path = kDefaultConfig;
  if (!path.empty()) {
    auto file = accel::agent::load_agent_config(path);
    if (!file) return file;
    config = *std::move(file);
  }
  if (!flags.listen.empty()) config.listen = flags.listen;
  if (flags.insecure) config.insecure = true;
  if (!flags.state_dir.empty()) {
    config.state_dir = flags.state_dir;
    config.runtime_dir = flags.state_dir + "/run";
  }
  auto complete = accel::agent::complete_agent_config(std::move(config));
  if (!complete) return complete;
  if (auto opened = accel::agent::open_revocations(complete->tls); !opened)
    return std::move(opened).error();
  return complete;
}

// What begins a line is the agent's: the rest of a text that others wrote is indented.
void log_line(const std::string& text) {
  std::string line;
  for (const char c : text) line += c == '\n' ? std::string("\n  ") : std::string(1, c);
  std::fprintf(stderr, "accel-agent: %s\n", line.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Runs the jobs of this node's users under accel-shim. Usually started by systemd.",
               "accel-agent");
  app.set_version_flag("--version", "accel-agent " ACCEL_VERSION);
  app.add_option("--config",
                 flags.config,
                 std::string("the configuration; ") + kDefaultConfig + " when it is there");
  app.add_option(
      "--listen", flags.listen, "ADDR:PORT for other nodes and operators; beats `listen`");
  app.add_option("--state-dir",
                 flags.state_dir,
                 "the folder of the agent's state, with its sockets below run/");
  app.add_flag("--insecure", flags.insecure, "TCP without TLS; loopback addresses only");
  app.add_flag(
      "--check", flags.check, "say what is wrong with the configuration, and start nothing");
  app.add_flag("--foreground",
               flags.foreground,
               "stay in the foreground (it always does; for scripts that say so)");
  CLI::App* init_tls = app.add_subcommand(
      "init-tls",
      "make a certificate authority, and certificates of nodes, launchers, operators and viewers");
  init_tls
      ->add_option("--dir", flags.tls.folder, "the authority's folder; made when it is not there")
      ->required();
  init_tls->add_option("--cluster", flags.tls.cluster, "the cluster's name (default)");
  init_tls->add_option("--role",
                       flags.tls.role,
                       "node, launcher, operator or viewer; without it only the authority is made");
  init_tls->add_option("--name", flags.tls.name, "the node's id, or the person's name");
  init_tls
      ->add_option("--days",
                   flags.tls.days,
                   "how long the certificate (365) or the list of --revoke (3650) is good")
      ->check(CLI::Range(1, 3650));
  init_tls->add_flag(
      "--revoke",
      flags.revoke,
      "take every certificate of --role and --name back: writes crl.pem, for `tls.crl`");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  }
  if (init_tls->parsed()) {
    const auto path = flags.revoke ? accel::agent::revoke_certificates(flags.tls)
                                   : accel::agent::issue_certificate(flags.tls);
    if (!path) return fail(path.error());
    std::printf("%s\n", path->c_str());
    return 0;
  }
  if (flags.check) {
    const auto config = load(flags);
    if (!config) return fail(config.error());
    std::printf("accel-agent: the configuration is good: node %s, state in %s\n",
                config->node_id.c_str(),
                config->state_dir.c_str());
    return 0;
  }
  ::signal(SIGPIPE, SIG_IGN);
  const accel::agent::AgentOptions options = {.config_path = flags.config,
                                              .load = [&] { return load(flags); },
                                              .log = log_line,
                                              .version = ACCEL_VERSION};
  const auto status = accel::agent::run_agent(options);
  return status ? *status : fail(status.error());
}

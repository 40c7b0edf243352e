#include "launcher/start/ssh/host_launch.h"

#include <algorithm>

#include "launcher/start/ssh/hostfile.h"
#include "launcher/text/shell_word.h"

namespace accel::launcher {
namespace {

// DeepSpeed's, and those that PyTorch, Accelerate and libaccel read.
constexpr std::string_view kExportedPrefixes[] = {"ACCELERATE_",
                                                  "CONDA_PREFIX",
                                                  "FSDP_",
                                                  "GLOO_",
                                                  "LD_LIBRARY",
                                                  "MLFLOW",
                                                  "MV2",
                                                  "NCCL",
                                                  "OMP_",
                                                  "PATH",
                                                  "PYTHON",
                                                  "TORCH_",
                                                  "UCX",
                                                  "VIRTUAL_ENV"};

}  // namespace

bool is_exported(std::string_view name) {
  return std::ranges::any_of(kExportedPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

int HostSettings::num_workers() const {
  std::size_t number = 0;
  for (const HostSlots& host : hosts) number += host.slots.size();
  return static_cast<int>(number);
}

std::string host_command_text(const HostSettings& settings,
                              const HostCommand& command,
                              std::size_t machine) {
  const std::vector<int>& slots = settings.hosts[machine].slots;
  std::vector<std::string> words = {"exec", "env"};
  for (const auto& [name, value] : command.variables) words.push_back(name + "=" + value);
  words.push_back("CUDA_VISIBLE_DEVICES=" + slot_list(slots));
  if (!command.secrets.empty()) {
    words.push_back(std::string(kStdinVariables) + "=" +
                    std::to_string(to_stdin_text(command.secrets).size()));
  }
  words.insert(words.end(),
               {command.program,
                "--stop_with_stdin",
                "--nnodes",
                std::to_string(settings.hosts.size()),
                "--node_rank",
                std::to_string(machine),
                "--master_addr",
                settings.main_address,
                "--master_port",
                std::to_string(settings.main_port),
                "--nproc_per_node",
                std::to_string(slots.size())});
  words.insert(words.end(), command.flags.begin(), command.flags.end());
  words.insert(words.end(), command.script.begin(), command.script.end());
  return "cd " + shell_word(command.folder) + " && " + shell_words(words);
}

std::vector<std::string> transport_words(HostTransport transport,
                                         const std::string& host,
                                         const std::string& text) {
  // Nobody is there to type a password: ssh says so instead of waiting.
  if (transport == HostTransport::kSsh)
    return {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", host, text};
  // %h, %n and %u in a command mean something to pdsh.
  std::string escaped;
  for (const char c : text) escaped += c == '%' ? std::string("%%") : std::string(1, c);
  return {"pdsh", "-b", "-S", "-N", "-R", "ssh", "-w", host, escaped};
}

Variables exported_variables(const EnvMap& workers, const EnvMap& inherited, const EnvMap& listed) {
  EnvMap all;
  for (const auto& [name, value] : workers) {
    const auto before = inherited.find(name);
    const bool is_ours = before == inherited.end() || before->second != value;
    if (is_ours || is_exported(name)) all[name] = value;
  }
  for (const auto& [name, value] : listed) all[name] = value;
  all.erase("CUDA_VISIBLE_DEVICES");  // each host has its own
  return {all.begin(), all.end()};
}

}  // namespace accel::launcher

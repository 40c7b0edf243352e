// TpuCommand: the line that runs commands on all workers of a TPU pod.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

struct TpuRequest {
  std::string tpu_name;
  std::string tpu_zone;
  std::string command_file;           // its lines are the commands, and beat `commands`
  std::vector<std::string> commands;  // run one after the other in /usr/share
  bool use_alpha = false;
  bool install_accelerate = false;
  std::string accelerate_version = "latest";  // a version, or "dev"
};

// What the request leaves open comes from tpu_name, tpu_zone, command_file and commands of a configuration; a command that
// is given beats both of the file. Pure.
// Errors  kConfigInvalidValue: one of these is no text (the line).
[[nodiscard]] Result<TpuRequest> with_defaults(TpuRequest request,
                                               const ConfigValue::Map& document);

// "gcloud compute tpus tpu-vm ssh NAME --zone ZONE --command ... --worker all", a word each. `lines` are those of the
// command file, if there is one. Commands that are empty are left out: two `;` in a row are no shell.
// Errors  kUsage: nothing to run, or no name or zone.
[[nodiscard]] Result<std::vector<std::string>> gcloud_words(const TpuRequest& request,
                                                            const std::vector<std::string>& lines);

}  // namespace accel::launcher

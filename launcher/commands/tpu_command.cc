#include "launcher/commands/tpu_command.h"

#include <utility>

#include <accel/error.h>

namespace accel::launcher {
namespace {

// The last of a repeated key, as everywhere; nullptr: absent or null.
const ConfigValue* find(const ConfigValue::Map& document, std::string_view key) {
  const ConfigValue* found = nullptr;
  for (const ConfigEntry& entry : document)
    if (entry.key == key) found = entry.value.is_null() ? nullptr : &entry.value;
  return found;
}

void fill(std::string& text, const ConfigValue* value) {
  if (text.empty() && value != nullptr) text = value->text;
}

std::string requirement(const std::string& version) {
  if (version == "dev") return "git+https://github.com/huggingface/accelerate.git";
  if (version == "latest") return "accelerate -U";
  return "accelerate==" + version;
}

Error missing(const std::string& what, const std::string& flag) {
  return Error(ErrorCode::kUsage,
               "the " + what + " of the TPU is not known",
               "give --" + flag + ", or have " + flag + " in the configuration file");
}

}  // namespace

TpuRequest with_defaults(TpuRequest request, const ConfigValue::Map& document) {
  fill(request.tpu_name, find(document, "tpu_name"));
  fill(request.tpu_zone, find(document, "tpu_zone"));
  if (!request.commands.empty()) return request;
  fill(request.command_file, find(document, "command_file"));
  const ConfigValue* commands = find(document, "commands");
  if (commands == nullptr) return request;
  if (const auto* list = std::get_if<ConfigValue::List>(&commands->data)) {
    for (const ConfigValue& command : *list) request.commands.push_back(command.text);
  } else {
    request.commands.push_back(commands->text);
  }
  return request;
}

Result<std::vector<std::string>> gcloud_words(const TpuRequest& request,
                                              const std::vector<std::string>& lines) {
  const std::vector<std::string>& commands =
      request.command_file.empty() ? request.commands : lines;
  if (commands.empty())
    return Error(ErrorCode::kUsage,
                 "You must specify either a command file or a command to run on the pod.",
                 "give --command or --command_file");
  if (request.tpu_name.empty()) return missing("name", "tpu_name");
  if (request.tpu_zone.empty()) return missing("zone", "tpu_zone");
  std::string script = "cd /usr/share";
  if (request.install_accelerate)
    script += "; pip install " + requirement(request.accelerate_version);
  for (const std::string& command : commands) script += "; " + command;
  std::vector<std::string> words = {"gcloud"};
  if (request.use_alpha) words.emplace_back("alpha");
  for (const char* word : {"compute", "tpus", "tpu-vm", "ssh"}) words.emplace_back(word);
  words.insert(words.end(),
               {request.tpu_name,
                "--zone",
                request.tpu_zone,
                "--command",
                std::move(script),
                "--worker",
                "all"});
  return words;
}

}  // namespace accel::launcher

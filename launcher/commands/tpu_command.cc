#include "launcher/commands/tpu_command.h"

#include <utility>
#include <variant>

#include <accel/error.h>

namespace accel::launcher {
namespace {

// The last of a repeated key, as everywhere; nullptr: absent or null.
const ConfigEntry* find(const ConfigValue::Map& document, std::string_view key) {
  const ConfigEntry* found = nullptr;
  for (const ConfigEntry& entry : document)
    if (entry.key == key) found = entry.value.is_null() ? nullptr : &entry;
  return found;
}

std::string command_text(const ConfigEntry& entry, const ConfigValue& value) {
  if (!std::holds_alternative<ConfigValue::List>(value.data) &&
      !std::holds_alternative<ConfigValue::Map>(value.data) && !value.is_null())
    return value.text;
  throw Error(ErrorCode::kConfigInvalidValue,
              "line " + std::to_string(value.line > 0 ? value.line : entry.line) + ": " +
                  entry.key + " holds what is no text",
              "write a text there, in quotes when it has a colon in it");
}

void fill(std::string& text, const ConfigEntry* entry) {
  if (text.empty() && entry != nullptr) text = command_text(*entry, entry->value);
}

TpuRequest filled_from(TpuRequest request, const ConfigValue::Map& document) {
  fill(request.tpu_name, find(document, "tpu_name"));
  fill(request.tpu_zone, find(document, "tpu_zone"));
  if (!request.commands.empty()) return request;
  fill(request.command_file, find(document, "command_file"));
  const ConfigEntry* commands = find(document, "commands");
  if (commands == nullptr) return request;
  if (const auto* list = std::get_if<ConfigValue::List>(&commands->value.data)) {
    for (const ConfigValue& command : *list)
      request.commands.push_back(command_text(*commands, command));
  } else {
    request.commands.push_back(command_text(*commands, commands->value));
  }
  return request;
}

std::string requirement(const std::string& version) {
  if (version == "dev") return "git+https://github.com/huggingface/accelerate.git";
  if (version == "latest") return "accelerate -U";
  return "accelerate==" + version;
}

Error missing_tpu_setting(const std::string& what, const std::string& flag) {
  return Error(ErrorCode::kUsage,
               "the " + what + " of the TPU is not known",
               "give --" + flag + ", or have " + flag + " in the configuration file");
}

}  // namespace

Result<TpuRequest> with_defaults(TpuRequest request, const ConfigValue::Map& document) {
  return to_result([&] { return filled_from(std::move(request), document); });
}

Result<std::vector<std::string>> gcloud_words(const TpuRequest& request,
                                              const std::vector<std::string>& lines) {
  std::vector<std::string> commands = request.command_file.empty() ? request.commands : lines;
  std::erase_if(commands, [](const std::string& command) {
    return command.find_first_not_of(" \t\r") == std::string::npos;
  });
  if (commands.empty())
    return Error(ErrorCode::kUsage,
                 "You must specify either a command file or a command to run on the pod.",
                 "give --command or --command_file");
  if (request.tpu_name.empty()) return missing_tpu_setting("name", "tpu_name");
  if (request.tpu_zone.empty()) return missing_tpu_setting("zone", "tpu_zone");
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

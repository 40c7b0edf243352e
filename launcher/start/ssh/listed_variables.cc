#include "launcher/start/ssh/listed_variables.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "runtime/text/text_file.h"
#include "runtime/user_folders.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

std::string variable_or(const EnvMap& environment, const char* name, const char* otherwise) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? otherwise : found->second;
}

}  // namespace

Result<EnvMap> parse_variable_file(std::string_view text, const std::string& path) {
  EnvMap variables;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Error(ErrorCode::kConfigSyntax,
                   path + ":" + std::to_string(number) + ": '" + std::string(line) +
                       "' is no variable, expected NAME=VALUE",
                   "mend the line, or remove " + path);
    }
    variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return variables;
}

Result<EnvMap> read_listed_variables(const EnvMap& environment) {
  EnvMap all;
  const std::string name = variable_or(environment, "DS_ENV_FILE", ".deepspeed_env");
  for (const fs::path& folder : {fs::path(home_folder(environment)), fs::path(".")}) {
    if (folder.empty()) continue;  // no home
    const std::string path = (folder / name).string();
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) continue;
    constexpr std::uint64_t kMostBytes = 1U << 20;
    const auto text = read_text_file(path, kMostBytes, "the variables for DeepSpeed's hosts");
    if (!text) return text.error();
    auto variables = parse_variable_file(*text, path);
    if (!variables) return std::move(variables).error();
    for (auto& [key, value] : *variables) all[key] = std::move(value);
  }
  return all;
}

}  // namespace accel::launcher

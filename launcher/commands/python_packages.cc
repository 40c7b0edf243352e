#include "launcher/commands/python_packages.h"

#include <filesystem>
#include <sstream>

#include "launcher/system/program_output.h"
#include "launcher/workers/script.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostVersionBytes = 1 << 16;

std::string text_or_nothing(const fs::path& path) {
  const auto text = read_text_file(path.string(), kMostVersionBytes, "the file");
  return text ? *text : "";
}

// What stands between quotes on the line that begins with `name`.
std::string quoted_value(std::string_view text, std::string_view name) {
  std::size_t line = 0;
  while (!text.substr(line).starts_with(name)) {
    line = text.find('\n', line);
    if (line == std::string_view::npos) return "";
    ++line;
  }
  const std::string_view rest = text.substr(line, text.substr(line).find('\n'));
  const std::size_t first = rest.find('\'');
  if (first == std::string_view::npos) return "";
  const std::size_t last = rest.find('\'', first + 1);
  return std::string(rest.substr(first + 1, last - first - 1));
}

// As names are compared (PEP 503): "Typing_Extensions" is "typing-extensions".
std::string normalized(std::string_view name) {
  std::string result;
  for (const char c : name) {
    const bool is_joint = c == '-' || c == '_' || c == '.';
    if (is_joint && result.ends_with('-')) continue;
    result += is_joint ? '-' : lowercase(c);
  }
  return result;
}

}  // namespace

PythonPackages find_python_packages(const EnvMap& environment) {
  const auto python = find_python(environment);
  if (!python) return {};
  PythonPackages found;
  found.python = *python;
  constexpr const char* kAsk =
      "import platform, sys\nprint(platform.python_version(), *sys.path, sep='\\n')";
  const auto output = run_program({*python, "-c", kAsk}, environment);
  if (!output || output->exit_code != 0) return found;
  std::istringstream said(output->out);
  std::getline(said, found.version);
  for (std::string folder; std::getline(said, folder);) {
    if (!folder.empty()) found.folders.push_back(folder);
  }
  return found;
}

std::optional<std::string> package_version(const std::vector<std::string>& folders,
                                           std::string_view package) {
  for (const std::string& folder : folders) {
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      const std::string name = entry->path().filename().string();
      const std::size_t dash = name.find('-');
      const std::size_t suffix = name.find(".dist-info");
      if (suffix == std::string::npos || dash == std::string::npos || dash > suffix) continue;
      if (normalized(name.substr(0, dash)) == normalized(package))
        return name.substr(dash + 1, suffix - dash - 1);
    }
  }
  return std::nullopt;
}

std::optional<TorchBuild> torch_build(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string text = text_or_nothing(fs::path(folder) / "torch/version.py");
    if (text.empty()) continue;
    return TorchBuild{quoted_value(text, "__version__"), quoted_value(text, "cuda")};
  }
  return std::nullopt;
}

}  // namespace accel::launcher

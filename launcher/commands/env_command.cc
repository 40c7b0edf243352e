#include "launcher/commands/env_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "launcher/commands/environment_report.h"
#include "launcher/commands/python_packages.h"
#include "launcher/config/config_file.h"
#include "launcher/config/config_normal_form.h"
#include "launcher/config/config_writer.h"
#include "launcher/flags/command_parser.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/system/own_environment.h"
#include "launcher/system/program_output.h"
#include "launcher/workers/script.h"
#include "runtime/text/text_file.h"
#include "runtime/user_folders.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnv = "env";

std::string platform() {
  utsname system = {};
  if (::uname(&system) != 0) return "Not found";
  return std::string(system.sysname) + "-" + system.release + "-" + system.machine + "-with-glibc" +
         gnu_get_libc_version();
}

double ram_bytes() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// What follows `name` on its line.
std::string value_after(const std::string& text, std::string_view name) {
  const std::size_t place = text.find(name);
  if (place == std::string::npos) return "";
  const std::size_t first = text.find_first_not_of(" \t", place + name.size());
  if (first == std::string::npos) return "";
  return text.substr(first, text.find('\n', first) - first);
}

std::string small_file(const fs::path& path) {
  const auto text = read_text_file(path.string(), kMostConfigBytes, "the file");
  return text ? *text : "";
}

std::vector<std::string> nonempty_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    if (end > start) lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

// Those that may be used, by the driver's own files; where a container hides them, by nvidia-smi.
std::vector<std::string> gpus(const EnvMap& environment) {
  std::vector<std::string> names;
  if (real_launch_host().num_gpus() == 0) return names;
  std::error_code failure;
  for (fs::directory_iterator entry("/proc/driver/nvidia/gpus", failure), end;
       !failure && entry != end;
       entry.increment(failure)) {
    const std::string model = value_after(small_file(entry->path() / "information"), "Model:");
    if (!model.empty()) names.push_back(model);
  }
  std::sort(names.begin(), names.end());
  if (!names.empty() || find_on_path("nvidia-smi", environment).empty()) return names;
  const auto output =
      run_program({"nvidia-smi", "--query-gpu=name", "--format=csv,noheader"}, environment);
  return output && output->exit_code == 0 ? nonempty_lines(output->out) : names;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu ..."
std::string driver() {
  return value_after(small_file("/proc/driver/nvidia/version"), "NVRM version:");
}

Result<std::optional<ConfigValue::Map>> config(const std::string& named,
                                               const EnvMap& environment) {
  const std::string path =
      named.empty() ? default_config_path(environment, home_folder(environment)) : named;
  std::error_code ignored;
  if (named.empty() && !fs::is_regular_file(path, ignored))
    return std::optional<ConfigValue::Map>();
  const auto text = read_text_file(path, kMostConfigBytes, "the configuration file");
  if (!text) return text.error();
  const auto document = parse_config(*text, format_of(path), path);
  if (!document) return document.error();
  if (const auto checked = load_config_file(path); !checked) return checked.error();
  return std::optional(normal_form(*document));
}

EnvironmentFacts facts_of(const EnvMap& environment) {
  EnvironmentFacts facts;
  facts.accel_version = ACCEL_VERSION;
  std::error_code failure;
  facts.accel_path = fs::read_symlink("/proc/self/exe", failure).string();
  facts.platform = platform();
  const PythonPackages python = find_python_packages(environment);
  facts.python = python.python;
  facts.python_version = python.version;
  facts.accelerate_version = package_version(python.folders, "accelerate").value_or("");
  facts.numpy_version = package_version(python.folders, "numpy").value_or("");
  if (const auto torch = torch_build(python.folders)) {
    facts.torch_version = torch->version;
    facts.torch_cuda = torch->cuda;
  }
  facts.ram_bytes = ram_bytes();
  facts.gpus = gpus(environment);
  facts.driver = driver();
  return facts;
}

}  // namespace

int env_command(const std::vector<std::string>& arguments) {
  std::string config_file;
  CommandParser line(kEnv, "Print what is installed on this machine, for a bug report.");
  line.app().add_option(
      "--config_file", config_file, "the configuration to print, instead of the default one");
  if (const auto status = line.parse(arguments)) return *status;
  const EnvMap environment = own_environment();
  const auto found = config(config_file, environment);
  EnvironmentFacts facts = facts_of(environment);
  facts.is_config_given = !config_file.empty();
  if (found) facts.config = *found;
  if (!found) facts.config_fault = found.error().message();
  std::fputs(environment_report(facts).c_str(), stdout);
  std::fflush(stdout);
  return found ? 0 : print_error(kEnv, found.error());
}

}  // namespace accel::launcher

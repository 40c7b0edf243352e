#include "launcher/commands/tpu_config.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/commands/tpu_command.h"
#include "launcher/config/config_file.h"
#include "launcher/config/config_writer.h"
#include "launcher/flags/command_parser.h"
#include "launcher/system/own_environment.h"
#include "runtime/printable.h"
#include "runtime/supervisor/spawn/program_answer.h"
#include "runtime/text/text_file.h"
#include "runtime/user_folders.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kTpuConfig = "tpu-config";

void add_tpu_options(CLI::App& app, TpuRequest& request, std::string& config_file, bool& debug) {
  app.add_option("--config_file", config_file, "where to look for what is not given");
  app.add_option("--tpu_name", request.tpu_name, "the TPU");
  app.add_option("--tpu_zone", request.tpu_zone, "its zone");
  app.add_flag("--use_alpha", request.use_alpha, "`gcloud alpha`");
  app.add_option("--command_file", request.command_file, "a file with a command on each line");
  app.add_option("--command", request.commands, "commands; may be given several times");
  app.add_flag("--install_accelerate", request.install_accelerate, "pip install accelerate before");
  app.add_option(
      "--accelerate_version", request.accelerate_version, "which one: a version, latest or dev");
  app.add_flag("--debug", debug, "print the line that would run");
}

Result<TpuRequest> with_file(TpuRequest request, const std::string& path) {
  if (auto checked = load_config_file(path); !checked) return std::move(checked).error();
  const auto text = read_text_file(path, kMostConfigBytes, "the configuration file");
  if (!text) return text.error();
  auto document = parse_config(*text, format_of(path), path);
  if (!document) return std::move(document).error();
  auto filled = with_defaults(std::move(request), *document);
  if (!filled) {
    Error error = std::move(filled).error();
    return std::move(error.while_doing("reading " + printable(path)));
  }
  return filled;
}

Result<std::vector<std::string>> read_commands(const std::string& path) {
  std::vector<std::string> lines;
  if (path.empty()) return lines;
  auto text = read_text_file(path, kMostConfigBytes, "the file of commands");
  if (!text)
    return Error(
        text.error().code(),
        text.error().message(),
        "check the path given with --command_file, or as command_file in the configuration");
  std::istringstream stream(*std::move(text));
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Result<int> run_gcloud(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      ::posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), ::environ);
  if (error != 0)
    return Error(ErrorCode::kExecFailed,
                 "cannot start " + words.front() + ": " + errno_text(error),
                 "install the Google Cloud CLI, or print the line with --debug");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return supervisor::exit_code_of(status);
}

Result<int> set_up(TpuRequest request, std::string config_file, bool debug) {
  if (config_file.empty()) {
    std::error_code ignored;
    const EnvMap environment = own_environment();
    const std::string usual = default_config_path(environment, home_folder(environment));
    if (std::filesystem::is_regular_file(usual, ignored)) config_file = usual;
  }
  if (!config_file.empty()) {
    auto filled = with_file(std::move(request), config_file);
    if (!filled) return std::move(filled).error();
    request = *std::move(filled);
  }
  const auto lines = read_commands(request.command_file);
  if (!lines) return lines.error();
  const auto words = gcloud_words(request, *lines);
  if (!words) return words.error();
  if (!debug) {
    const auto status = run_gcloud(*words);
    if (status && *status == 0) std::puts("Successfully setup pod.");
    return status;
  }
  std::string text = "Running";
  for (const std::string& word : *words) text += " " + word;
  std::puts(text.c_str());
  return 0;
}

}  // namespace

int tpu_config_command(const std::vector<std::string>& arguments) {
  TpuRequest request;
  std::string config_file;
  bool debug = false;
  CommandParser line(kTpuConfig, "Run commands on all workers of a TPU pod, through gcloud.");
  add_tpu_options(line.app(), request, config_file, debug);
  if (const auto status = line.parse(arguments)) return *status;
  const auto status = set_up(std::move(request), std::move(config_file), debug);
  return status ? *status : print_error(kTpuConfig, status.error());
}

}  // namespace accel::launcher

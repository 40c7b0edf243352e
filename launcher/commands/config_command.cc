#include "launcher/commands/config_command.h"

#include <cstdio>
#include <filesystem>

#include <unistd.h>

#include "launcher/config/config_file.h"
#include "launcher/config/config_normal_form.h"
#include "launcher/config/config_writer.h"
#include "launcher/config/questionnaire/answered_config.h"
#include "launcher/config/questionnaire/dialogue.h"
#include "launcher/flags/command_parser.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/system/own_environment.h"
#include "runtime/environment_value.h"
#include "runtime/printable.h"
#include "runtime/text/text_file.h"
#include "runtime/user_folders.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kConfig = "config";
constexpr std::string_view kDefault = "config default";
constexpr std::string_view kUpdate = "config update";

constexpr const char* kConfigFileHelp =
    "where to write; without it $HF_HOME/accelerate/default_config.yaml, or the same below "
    "$XDG_CACHE_HOME/huggingface or ~/.cache/huggingface; JSON when the name ends in .json";

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Result<std::string> named_or_default(const std::string& named) {
  if (!named.empty()) return named;
  const EnvMap environment = own_environment();
  std::string path = default_config_path(environment, home_folder(environment));
  if (path.empty())
    return Error(
        ErrorCode::kUsage,
        "there is no place for a default configuration: neither HF_HOME nor HOME is set, and "
        "the user has no home in the password database",
        "give --config_file PATH");
  return path;
}

Result<void> write(const std::string& path, const ConfigValue::Map& document) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code failure;
  if (!folder.empty()) std::filesystem::create_directories(folder, failure);
  if (failure)
    return Error(
        ErrorCode::kFileIo,
        "cannot create the folder " + printable(folder.string()) + ": " + failure.message());
  return write_config(path, document);
}

PathContext path_context() {
  const EnvMap environment = own_environment();
  std::error_code ignored;
  return {home_folder(environment), std::filesystem::current_path(ignored).string()};
}

// Empty: choices are asked by lines.
MenuChooser menu_chooser() {
  const EnvMap environment = own_environment();
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  if (!is_terminal ||
      !can_draw_menus(value_in(environment, "TERM"), value_in(environment, "NO_COLOR")))
    return {};
  return [](const std::vector<MenuRow>& rows, std::size_t position) {
    return choose_on_terminal(STDIN_FILENO, STDOUT_FILENO, rows, position);
  };
}

// The peer's words, so that scripts which look for them find them.
void say_saved(const std::string& path) {
  std::printf("accelerate configuration saved at %s\n", printable(path).c_str());
}

int ask_and_write(const std::vector<std::string>& words) {
  std::string config_file;
  CommandParser line(
      kConfig,
      "Ask how you train, and write the answers to a configuration file. `accel "
      "config default` asks nothing, `accel config update` brings a file up to date.");
  line.app().add_option("--config_file", config_file, kConfigFileHelp);
  if (const auto status = line.parse(words)) return *status;
  const auto path = named_or_default(config_file);
  if (!path) return print_error(kConfig, path.error());
  if (const auto place = check_place(*path); !place) return print_error(kConfig, place.error());
  const auto answers = hold_dialogue(stdin, stdout, menu_chooser());
  if (!answers) {
    std::printf("\n");
    return print_error(kConfig, answers.error());
  }
  const auto document = answered_config(*answers, path_context());
  if (const auto written = write(*path, document); !written) {
    std::printf("\n%s", to_text(document, format_of(*path)).c_str());  // the answers are not lost
    return print_error(kConfig, written.error());
  }
  for (const std::string& note : closing_notes(*answers)) print_notice(kConfig, note);
  say_saved(*path);
  return 0;
}

int write_default(const std::vector<std::string>& words) {
  std::string config_file;
  std::string mixed_precision = "no";
  CommandParser line(kDefault, "Write a configuration for this machine, and ask nothing.");
  line.app().add_option("--config_file", config_file, kConfigFileHelp);
  line.app()
      .add_option("--mixed_precision", mixed_precision, "no, fp16 or bf16; no by default")
      ->check(CLI::IsMember({"no", "fp16", "bf16"}));
  if (const auto status = line.parse(words)) return *status;
  const auto path = named_or_default(config_file);
  if (!path) return print_error(kDefault, path.error());
  if (exists(*path)) {
    std::printf(
        "Configuration already exists at %s, will not override. Run `accel config`, or give "
        "another --config_file.\n",
        printable(*path).c_str());
    return 0;
  }
  const auto document = basic_config(mixed_precision, real_launch_host().num_gpus());
  const auto written = write(*path, in_alphabetical_order(document));
  if (!written) return print_error(kDefault, written.error());
  say_saved(*path);
  return 0;
}

Result<void> update_file(const std::string& path) {
  if (!exists(path))
    return Error(ErrorCode::kConfigUnreadable,
                 "The passed config file located at " + printable(path) + " doesn't exist.",
                 "give --config_file PATH, or write one with `accel config`");
  const auto text = read_text_file(path, kMostConfigBytes, "the configuration file");
  if (!text) return text.error();
  const auto document = parse_config(*text, format_of(path), path);
  if (!document) return document.error();
  const auto checked = parse_config_file(*text, format_of(path), path);
  if (!checked) return checked.error();
  for (const FileNotice& notice : checked->notices) print_notice(kUpdate, notice.text());
  return write_config(path, in_alphabetical_order(normal_form(*document)));
}

int update(const std::vector<std::string>& words) {
  std::string config_file;
  CommandParser line(kUpdate,
                     "Write a configuration file anew as the present version has it: what it says "
                     "stays, what it lacks gets its default, keys of older versions are renamed.");
  line.app().add_option(
      "--config_file",
      config_file,
      "the file to update; without it the default one, see `accel config --help`");
  if (const auto status = line.parse(words)) return *status;
  const auto path = named_or_default(config_file);
  if (!path) return print_error(kUpdate, path.error());
  const auto updated = update_file(*path);
  if (!updated) return print_error(kUpdate, updated.error());
  std::printf("Successfully updated the configuration file at %s.\n", printable(*path).c_str());
  return 0;
}

// Behind --config_file, in front of a subcommand: the peer reads it there, and then takes the subcommand's own.
std::vector<std::string>::const_iterator behind_config_file(const std::vector<std::string>& words) {
  auto word = words.begin();
  while (word != words.end()) {
    const bool is_alone = *word == "--config_file" || *word == "--config-file";
    const bool is_joined =
        word->starts_with("--config_file=") || word->starts_with("--config-file=");
    if (!is_joined && (!is_alone || word + 1 == words.end())) break;
    word += is_joined ? 1 : 2;
  }
  return word;
}

}  // namespace

int config_command(const std::vector<std::string>& arguments) {
  const auto word = behind_config_file(arguments);
  const bool is_default = word != arguments.end() && *word == "default";
  const bool is_update = word != arguments.end() && *word == "update";
  if (!is_default && !is_update) return ask_and_write(arguments);
  if (word != arguments.begin()) {
    print_notice(
        is_default ? kDefault : kUpdate,
        "--config_file has no effect before `" + *word + "`, as in accelerate: give it after");
  }
  const std::vector<std::string> rest(word + 1, arguments.end());
  return is_default ? write_default(rest) : update(rest);
}

}  // namespace accel::launcher

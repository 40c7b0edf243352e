// CommandParser: how the commands of `accel` that need no agent read their arguments and speak.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <accel/error.h>

#include "launcher/flags/command_description.h"

namespace accel::launcher {

// `-` and `_` are the same in the names of flags, as with launch.
class CommandParser {
 public:
  CommandParser(std::string_view command, std::string_view summary);

  // Options are added to it, spelled with underscores.
  [[nodiscard]] CLI::App& app() noexcept { return app_; }
  // nullopt when the arguments can be used; else the exit status: 0 after --help, which it prints, 2 after an error, which
  // it prints.
  [[nodiscard]] std::optional<int> parse(const std::vector<std::string>& arguments);

 private:
  std::string command_;
  CLI::App app_;
};

// A flag as it is spelled with underscores: "--config-file=a-b" -> "--config_file=a-b". Other words stay.
[[nodiscard]] std::string with_underscores(std::string word);

// What the help of an application of CLI11 shows, in the form of the other commands: not the options without a group. `command` is "config
// default".
[[nodiscard]] CommandDescription description_of(std::string_view command, const CLI::App& app);

// While it lives, parse() of this thread neither parses nor prints: it hands the command's description to the recorder and
// returns 0, so that the command ends. One at a time.
class CommandRecorder {
 public:
  CommandRecorder();
  ~CommandRecorder();
  CommandRecorder(const CommandRecorder&) = delete;
  CommandRecorder& operator=(const CommandRecorder&) = delete;

  [[nodiscard]] const CommandDescription& description() const noexcept { return description_; }

 private:
  friend class CommandParser;
  CommandDescription description_;
};

// To stderr. print_error returns the exit status.
int print_error(std::string_view command, const Error& error);
void print_notice(std::string_view command, std::string_view text);

}  // namespace accel::launcher

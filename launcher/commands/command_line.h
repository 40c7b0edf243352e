// CommandLine: how the commands of `accel` that need no agent read their arguments and speak.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <accel/error.h>

namespace accel::launcher {

// `-` and `_` are the same in the names of flags, as with launch.
class CommandLine {
 public:
  CommandLine(std::string_view command, std::string_view summary);

  // Options are added to it, spelled with underscores.
  [[nodiscard]] CLI::App& app() noexcept { return app_; }
  // nullopt when the arguments can be used; else the exit status: 0 after --help, which it prints, 2 after an error, which
  // it prints.
  [[nodiscard]] std::optional<int> parse(const std::vector<std::string>& arguments);

 private:
  std::string command_;
  CLI::App app_;
};

// To stderr. print_error returns the exit status.
int print_error(std::string_view command, const Error& error);
void print_notice(std::string_view command, std::string_view text);

}  // namespace accel::launcher

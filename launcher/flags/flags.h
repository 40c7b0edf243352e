// Flags: the command line of accel-launch, cut into given flags, the script and its arguments.
//
// Nothing is given a default here: what the user typed must stay apart from what nobody said,
// because a configuration file stands between the two.
//
// Threads:  pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/flags/etcd_access.h"
#include "launcher/text/faults.h"
#include "launcher/text/program.h"

namespace accel::launcher {

struct CommandLine {
  // By FlagSpec::name. A switch holds "true" or "false"; a flag that was repeated holds its last
  // value.
  std::map<std::string, std::string, std::less<>> given;
  std::map<std::string, std::vector<std::string>, std::less<>> repeated;  // all its values
  std::string script;               // empty when there is none
  bool is_torchrun = false;         // started as accel-torchrun
  bool counts_per_machine = false;  // num_processes is of each machine, not of all
  bool is_at_endpoint = false;      // --rdzv_endpoint said where machine 0 is
  bool joins_in_order = false;      // machine ranks come from the order of joins
  std::optional<EtcdAccess>
      etcd;                     // says who is machine 0; no endpoint: at the main process's address
  std::string run_id = "none";  // of one node, which meets nobody: --rdzv_id
  std::vector<std::string> notices;  // flags of other versions
  std::vector<std::string>
      script_arguments;  // one "--" right after the script is dropped, but for --strict_compat

  [[nodiscard]] bool has(std::string_view flag) const { return given.find(flag) != given.end(); }
  [[nodiscard]] bool is_on(std::string_view flag) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view flag) const;
  [[nodiscard]] Program program() const {
    return is_torchrun ? Program::kTorchrun : Program::kLaunch;
  }
  // As messages of this launch write it; `flag` is a FlagSpec::name.
  [[nodiscard]] std::string spelled(std::string_view flag) const {
    return launcher::spelled(flag, program());
  }
};

// Errors  kUnknownFlag (with the nearest known flag), kUnsupported for a flag of a feature that is
// not
//         built yet, kUsage for a missing value.
[[nodiscard]] Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                                     Program program = Program::kLaunch);

// Reads a value as its FlagSpec says. A fault is added (kInvalidArgument: flag, value, expected)
// and std::nullopt returned when it does not fit; std::nullopt without a fault when the flag was
// not given.
[[nodiscard]] std::optional<int> integer_flag(
    const CommandLine& line, std::string_view flag, int least, int most, Faults& faults);
[[nodiscard]] std::optional<std::string> choice_flag(const CommandLine& line,
                                                     std::string_view flag,
                                                     Faults& faults);
[[nodiscard]] std::optional<double> seconds_flag(const CommandLine& line,
                                                 std::string_view flag,
                                                 Faults& faults);

}  // namespace accel::launcher

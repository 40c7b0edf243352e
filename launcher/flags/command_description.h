// CommandDescription: the flags of a command of `accel`, as its help, its man page and the completions
// of shells show them.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

struct CommandOption {
  std::string name;   // "--config_file"; of what stands for itself "MODEL"
  std::string value;  // "FILE"; empty for a switch and for what stands for itself
  std::string help;
  std::vector<std::string> choices;
  bool is_required = false;
  std::string short_name = {};  // "-n"; may be empty

  [[nodiscard]] bool is_flag() const { return name.starts_with('-'); }
};

struct CommandDescription {
  std::string name;  // "config default"
  std::string summary;
  std::vector<CommandOption> options;  // flags first
};

// "accel config default [flags]"
[[nodiscard]] std::string usage(const CommandDescription& command);

// What --help prints: at most 80 columns.
[[nodiscard]] std::string help_text(const CommandDescription& command);

// How a value is called: "FILE" for "--config_file", "MODEL_NAME" for "model_name".
[[nodiscard]] std::string value_name(std::string_view flag);

}  // namespace accel::launcher

// CompletedCommand: a command of `accel` as the completions of all shells see it.
//
// Threads:  see commands/local_commands.h, describe().
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

struct CompletedFlag {
  std::string name;   // "--config_file"
  std::string value;  // "FILE"; empty for a switch
  std::string help;   // one line; may be empty
  std::vector<std::string> choices;
  std::string short_name = {};  // "-t"; may be empty

  [[nodiscard]] bool takes_file() const;
};

struct CompletedCommand {
  std::string name;
  std::string summary;
  std::vector<CompletedFlag> flags;
  std::vector<std::string> subcommands;
  // What follows its first word that is no flag belongs to that word: a script or a program.
  bool ends_at_script = false;
  bool takes_hyphens = false;              // in the names of flags, where they have underscores
  std::vector<std::string> programs = {};  // that are this command, beside accel

  // The flags whose value is the next word, with '_' in place of each '-', as both shells compare them: "__config_file".
  [[nodiscard]] std::vector<std::string> value_patterns() const;
};

// `launch` is the first, with the flags of accel-launch.
[[nodiscard]] std::vector<CompletedCommand> completed_commands();

// The programs of all commands, without accel itself.
[[nodiscard]] std::vector<std::string> completed_programs();

// The scripts that a shell reads; each completes accel and the programs of its commands. Files are left to the shell, which
// knows how it quotes their names.
[[nodiscard]] std::string bash_completion();
[[nodiscard]] std::string zsh_completion();
[[nodiscard]] std::string fish_completion();

}  // namespace accel::launcher

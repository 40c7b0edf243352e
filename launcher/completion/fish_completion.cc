#include <string_view>

#include "launcher/completion/completed_command.h"

namespace accel::launcher {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// "-l config_file -r -F -d '...'"
std::string flag_words(const CompletedFlag& flag) {
  std::string out = "-l " + flag.name.substr(2);
  if (!flag.choices.empty() && !flag.value.empty()) {
    out += " -x -a " + quoted(joined(flag.choices));
  } else if (flag.takes_file()) {
    out += " -r -F";
  } else if (!flag.value.empty()) {
    out += " -x";
  }
  return flag.help.empty() ? out : out + " -d " + quoted(flag.help);
}

std::string of_command(const CompletedCommand& command) {
  const std::string condition = quoted("__accel_is " + command.name);
  std::string out;
  for (const CompletedFlag& flag : command.flags)
    out += "complete -c accel -n " + condition + " " + flag_words(flag) + "\n";
  if (!command.subcommands.empty())
    out +=
        "complete -c accel -n " + condition + " -a " + quoted(joined(command.subcommands)) + "\n";
  return out;
}

}  // namespace

std::string fish_completion() {
  std::string out =
      "# Written by scripts/generate_docs.sh from the tables of flags. Do not edit it.\n"
      "function __accel_is\n"
      "    set -l words (commandline -opc)\n"
      "    test \"$words[2]\" = $argv[1]\n"
      "end\n"
      "function __accel_is_alone\n"
      "    test (count (commandline -opc)) -eq 1\n"
      "end\n"
      "complete -c accel -n __accel_is_alone -f\n";
  const auto commands = completed_commands();
  for (const CompletedCommand& command : commands)
    out += "complete -c accel -n __accel_is_alone -a " + command.name + " -d " +
           quoted(command.summary) + "\n";
  for (const CompletedCommand& command : commands) out += of_command(command);
  out += "for program in accel-launch accel-torchrun\n";
  for (const CompletedFlag& flag : commands.front().flags)
    out += "    complete -c $program " + flag_words(flag) + "\n";
  return out + "end\n";
}

}  // namespace accel::launcher

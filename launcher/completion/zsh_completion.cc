#include <string_view>

#include "launcher/completion/completed_command.h"

namespace accel::launcher {
namespace {

// Within single quotes, where `special` has a meaning for _arguments or _describe.
std::string quoted(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '\\' || special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string action_of(const CompletedFlag& flag) {
  if (flag.value.empty()) return "";
  std::string values;
  for (const std::string& choice : flag.choices) values += (values.empty() ? "" : " ") + choice;
  const std::string action = !values.empty()     ? "(" + values + ")"
                             : flag.takes_file() ? "_files"
                                                 : " ";
  return ":" + quoted(flag.value, ":") + ":" + action;
}

std::string function_name(const CompletedCommand& command) {
  return "_accel_" + command.name;
}

std::string function_of(const CompletedCommand& command) {
  std::string out = function_name(command) + "() {\n  _arguments -S \\\n";
  for (const CompletedFlag& flag : command.flags)
    out += "    '" + flag.name + "[" + quoted(flag.help, "[]:") + "]" + action_of(flag) + "' \\\n";
  std::string words;
  for (const std::string& word : command.subcommands) words += (words.empty() ? "" : " ") + word;
  if (!words.empty()) return out + "    '1:word:(" + words + ")'\n}\n";
  if (command.ends_at_script)
    return out + "    '(-)1:script:_files' \\\n    '*:argument:_files'\n}\n";
  return out + "    '*:file:_files'\n}\n";
}

}  // namespace

std::string zsh_completion() {
  std::string out =
      "#compdef accel accel-launch accel-torchrun\n"
      "# Written by scripts/generate_docs.sh from the tables of flags. Do not edit it.\n";
  std::string names;
  std::string cases;
  for (const CompletedCommand& command : completed_commands()) {
    out += function_of(command);
    names += "    '" + command.name + ":" + quoted(command.summary, "") + "'\n";
    cases += "    " + command.name + ") " + function_name(command) + " ;;\n";
  }
  return out +
         "_accel() {\n"
         "  if [[ $service != accel ]]; then\n"
         "    _accel_launch\n"
         "    return\n"
         "  fi\n"
         "  local -a commands\n"
         "  commands=(\n" +
         names +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $words[1] in\n" +
         cases +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _accel ]]; then\n"
         "  _accel \"$@\"\n"
         "else\n"
         "  compdef _accel accel accel-launch accel-torchrun\n"
         "fi\n";
}

}  // namespace accel::launcher

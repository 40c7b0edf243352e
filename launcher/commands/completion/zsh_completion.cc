#include <string_view>

#include "launcher/commands/completion/completed_command.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

// Within single quotes, where `special` has a meaning for _arguments or _describe.
std::string zsh_quoted(std::string_view text, std::string_view special) {
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
  const std::string values = joined(flag.choices, " ");
  const std::string action = !values.empty()     ? "(" + values + ")"
                             : flag.takes_file() ? "_files"
                                                 : " ";
  return ":" + zsh_quoted(flag.value, ":") + ":" + action;
}

std::string zsh_function_name(const CompletedCommand& command) {
  return "_accel_" + command.name;
}

std::string specs_of(const CompletedFlag& flag) {
  const std::string rest = "[" + zsh_quoted(flag.help, "[]:") + "]" + action_of(flag) + "' \\\n";
  std::string specs = "    '" + flag.name + rest;
  if (!flag.short_name.empty()) specs += "    '" + flag.short_name + rest;
  return specs;
}

std::string zsh_function(const CompletedCommand& command) {
  std::string out = zsh_function_name(command) + "() {\n  " +
                    (command.takes_hyphens ? "_accel_arguments" : "_arguments -S") + " \\\n";
  for (const CompletedFlag& flag : command.flags) out += specs_of(flag);
  const std::string words = joined(command.subcommands, " ");
  if (!words.empty()) return out + "    '1:word:(" + words + ")'\n}\n";
  if (command.ends_at_script)
    return out + "    '(-)1:script:_files' \\\n    '*:argument:_files'\n}\n";
  return out + "    '*:file:_files'\n}\n";
}

// Names of flags as the word at the cursor has them, with hyphens or underscores, in the words before it too. With an '=' in
// that word, _arguments wants one in what it knows.
constexpr std::string_view kArguments =
    "_accel_arguments() {\n"
    "  local -a specs=(\"$@\")\n"
    "  local flag=${PREFIX%%=*} from=- to=_ equals= i\n"
    "  [[ $flag == --?*-* ]] && from=_ to=-\n"
    "  [[ $PREFIX == --*=* ]] && equals='='\n"
    "  for (( i = 1; i <= $#specs; ++i )); do\n"
    "    [[ $specs[i] == --* ]] || continue\n"
    "    flag=${specs[i]%%\\[*}\n"
    "    specs[i]=\"--${${flag#--}//$from/$to}$equals${specs[i]#$flag}\"\n"
    "  done\n"
    "  for (( i = 2; i < CURRENT; ++i )); do\n"
    "    [[ $words[i] == --* ]] || continue\n"
    "    flag=${words[i]%%=*}\n"
    "    words[i]=--${${flag#--}//$from/$to}${words[i]#$flag}\n"
    "  done\n"
    "  _arguments -S \"${specs[@]}\"\n"
    "}\n";

}  // namespace

std::string zsh_completion() {
  std::string programs = "accel";
  for (const std::string& program : completed_programs()) programs += " " + program;
  std::string out =
      "#compdef " + programs +
      "\n# Written by scripts/generate_docs.sh from the tables of flags. Do not edit it.\n" +
      std::string(kArguments);
  std::string names;
  std::string cases;
  for (const CompletedCommand& command : completed_commands()) {
    out += zsh_function(command);
    names += "    '" + command.name + ":" + zsh_quoted(command.summary, "") + "'\n";
    cases += "    " + command.name + ") " + zsh_function_name(command) + " ;;\n";
  }
  return out +
         "_accel_command() {\n"
         "  case $1 in\n" +
         cases +
         "  esac\n"
         "}\n"
         "_accel() {\n"
         "  case $service in\n"
         "    accel) ;;\n"
         "    accel-torchrun) _accel_launch; return ;;\n"
         "    *) _accel_command ${service#accel-}; return ;;\n"
         "  esac\n"
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
         "  _accel_command $words[1]\n"
         "}\n"
         "if [[ $funcstack[1] == _accel ]]; then\n"
         "  _accel \"$@\"\n"
         "else\n"
         "  compdef _accel " +
         programs +
         "\n"
         "fi\n";
}

}  // namespace accel::launcher

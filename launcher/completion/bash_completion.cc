#include "launcher/completion/completed_command.h"

namespace accel::launcher {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string flags_of(const CompletedCommand& command) {
  std::string text;
  for (const CompletedFlag& flag : command.flags) text += (text.empty() ? "" : " ") + flag.name;
  return text;
}

std::string function_name(const CompletedCommand& command) {
  std::string name = "_accel_" + command.name;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

// Completes the word at the cursor by the word before it.
std::string function_of(const CompletedCommand& command) {
  std::string out = function_name(command) +
                    "() {\n  local word=${COMP_WORDS[COMP_CWORD]} "
                    "before=${COMP_WORDS[COMP_CWORD - 1]}\n  case $before in\n";
  for (const CompletedFlag& flag : command.flags) {
    if (flag.choices.empty()) continue;
    out += "    " + flag.name + ") COMPREPLY=($(compgen -W \"" + joined(flag.choices) +
           "\" -- \"$word\")); return ;;\n";
  }
  return out + "    *) ;;\n  esac\n  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W \"" +
         flags_of(command) +
         "\" -- \"$word\"))\n  else\n    COMPREPLY=($(compgen -f -- \"$word\")" +
         (command.subcommands.empty()
              ? std::string()
              : " $(compgen -W \"" + joined(command.subcommands) + "\" -- \"$word\")") +
         ")\n  fi\n}\n";
}

}  // namespace

std::string bash_completion() {
  std::string out =
      "# Written by scripts/generate_docs.sh from the tables of flags. Do not edit it.\n";
  std::string names;
  std::string cases;
  for (const CompletedCommand& command : completed_commands()) {
    out += function_of(command);
    names += (names.empty() ? "" : " ") + command.name;
    cases += "    " + command.name + ") " + function_name(command) + " ;;\n";
  }
  return out +
         "_accel() {\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    COMPREPLY=($(compgen -W \"" +
         names +
         "\" -- \"${COMP_WORDS[1]}\"))\n"
         "    return\n"
         "  fi\n"
         "  case ${COMP_WORDS[1]} in\n" +
         cases +
         "    *) ;;\n"
         "  esac\n"
         "}\n"
         "complete -o filenames -F _accel accel\n"
         "complete -o filenames -F _accel_launch accel-launch accel-torchrun\n";
}

}  // namespace accel::launcher

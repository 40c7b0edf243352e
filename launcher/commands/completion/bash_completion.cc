#include <algorithm>

#include "launcher/commands/completion/completed_command.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

std::string bash_function_name(const CompletedCommand& command) {
  std::string name = "_accel_" + command.name;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

// "|__config_file|_t|", as _accel_has_script() looks for a flag in it.
std::string values_of(const CompletedCommand& command) {
  std::string text = "|";
  for (const std::string& pattern : command.value_patterns()) text += pattern + "|";
  return text;
}

// Bash makes three words of --flag=value. `before` is the word before the cursor's, or before its '='.
constexpr const char* kConditions =
    "_accel_is_value() {\n"
    "  [[ $1 == *\"|${before//-/_}|\"* ]]\n"
    "}\n"
    "_accel_has_script() {\n"
    "  local i=1\n"
    "  [[ ${COMP_WORDS[0]##*/} == accel ]] && i=2\n"
    "  for ((; i < COMP_CWORD; ++i)); do\n"
    "    [[ ${COMP_WORDS[i]} == -* ]] || return 0\n"
    "    if [[ ${COMP_WORDS[i + 1]} == = ]]; then\n"
    "      ((i += 2))\n"
    "    elif [[ $1 == *\"|${COMP_WORDS[i]//-/_}|\"* ]]; then\n"
    "      ((++i))\n"
    "    fi\n"
    "  done\n"
    "  return 1\n"
    "}\n";

std::string cases_of(const CompletedCommand& command) {
  std::string out;
  for (const CompletedFlag& flag : command.flags) {
    if (flag.choices.empty() || flag.value.empty()) continue;
    std::string pattern = flag.name;
    std::replace(pattern.begin(), pattern.end(), '-', '_');
    out += "    " + pattern + ") COMPREPLY=($(compgen -W \"" + joined(flag.choices, " ") +
           "\" -- \"$word\")); return ;;\n";
  }
  return out;
}

// Completes the word at the cursor by the word before it. Where nothing is offered, the shell offers files.
std::string bash_function(const CompletedCommand& command) {
  std::string out = bash_function_name(command) +
                    "() {\n  local word=${COMP_WORDS[COMP_CWORD]} "
                    "before=${COMP_WORDS[COMP_CWORD - 1]} flags\n"
                    "  COMPREPLY=()\n"
                    "  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]}\n"
                    "  [[ $word == = ]] && word=\n";
  const std::string values = "'" + values_of(command) + "'";
  if (command.ends_at_script) out += "  _accel_has_script " + values + " && return\n";
  out += "  case ${before//-/_} in\n" + cases_of(command) +
         "    *) ;;\n  esac\n"
         "  _accel_is_value " +
         values + " && return\n  if [[ $word == -* ]]; then\n    flags=\"" +
         joined(command.flags, " ", &CompletedFlag::name) + "\"\n";
  if (command.takes_hyphens) out += "    [[ ${word#--} == *-* ]] && flags=${flags//_/-}\n";
  out += "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n";
  if (!command.subcommands.empty())
    out += "  else\n    COMPREPLY=($(compgen -W \"" + joined(command.subcommands, " ") +
           "\" -- \"$word\"))\n";
  return out + "  fi\n}\n";
}

}  // namespace

std::string bash_completion() {
  std::string out =
      "# Written by scripts/generate_docs.sh from the tables of flags. Do not edit it.\n";
  out += kConditions;
  std::string names;
  std::string cases;
  std::string registrations;
  for (const CompletedCommand& command : completed_commands()) {
    out += bash_function(command);
    if (!command.programs.empty())
      registrations += "complete -o default -F " + bash_function_name(command) + " " +
                       joined(command.programs, " ") + "\n";
    names += (names.empty() ? "" : " ") + command.name;
    cases += "    " + command.name + ") " + bash_function_name(command) + " ;;\n";
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
         "complete -o default -F _accel accel\n" +
         registrations;
}

}  // namespace accel::launcher

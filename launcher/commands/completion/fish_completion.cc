#include <string_view>

#include "launcher/commands/completion/completed_command.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// "-l config_file -r -F -d '...'"
std::string flag_words(const CompletedFlag& flag) {
  std::string out = "-l " + flag.name.substr(2);
  if (!flag.short_name.empty()) out += " -s " + flag.short_name.substr(1);
  if (!flag.choices.empty() && !flag.value.empty()) {
    out += " -x -a " + fish_quoted(joined(flag.choices, " "));
  } else if (flag.takes_file()) {
    out += " -r -F";
  } else if (!flag.value.empty()) {
    out += " -x";
  }
  return flag.help.empty() ? out : out + " -d " + fish_quoted(flag.help);
}

// Whether the cursor stands where a flag of the command may; `num_words` come before its flags.
std::string function_before_script(const CompletedCommand& command,
                                   const std::string& name,
                                   int num_words) {
  return "function " + name + "\n    not __accel_has_script " + std::to_string(num_words) + " " +
         joined(command.value_patterns(), " ") + "\nend\n";
}

std::string of_command(const CompletedCommand& command) {
  std::string condition = "__accel_is " + command.name;
  std::string out;
  if (command.ends_at_script) {
    const std::string name = "__accel_is_before_script_of_" + command.name;
    out += function_before_script(command, name, 2);
    condition += "; and " + name;
  }
  condition = fish_quoted(condition);
  for (const CompletedFlag& flag : command.flags)
    out += "complete -c accel -n " + condition + " " + flag_words(flag) + "\n";
  if (!command.subcommands.empty())
    out += "complete -c accel -n " + condition + " -a " +
           fish_quoted(joined(command.subcommands, " ")) + "\n";
  return out;
}

// The programs complete what follows their names as accel does behind the command.
std::string of_programs(const CompletedCommand& command) {
  if (command.programs.empty()) return "";
  std::string out = "for program in " + joined(command.programs, " ") + "\n";
  std::string condition;
  if (command.ends_at_script) {
    const std::string name = "__accel_is_before_script";
    out.insert(0, function_before_script(command, name, 1));
    condition = " -n " + name;
  }
  for (const CompletedFlag& flag : command.flags)
    out += "    complete -c $program" + condition + " " + flag_words(flag) + "\n";
  if (!command.subcommands.empty())
    out += "    complete -c $program" + condition + " -a " +
           fish_quoted(joined(command.subcommands, " ")) + "\n";
  return out + "end\n";
}

// A flag that is written with hyphens is completed as the same with underscores, and so is its value.
constexpr const char* kHyphens =
    "function __accel_has_hyphens\n"
    "    set -l words (commandline -opc) (commandline -ct)\n"
    "    string match -qr -- '^--[a-z0-9]+-' $words[-2..-1]\n"
    "end\n"
    "function __accel_hyphened\n"
    "    set -l words (commandline -opc) (commandline -ct)\n"
    "    set -l is_flag (string match -- '--*' $words[-1])\n"
    "    for i in (seq (count $words))\n"
    "        set -l parts (string split -m 1 = -- $words[$i])\n"
    "        string match -q -- '--*' $parts[1]; or continue\n"
    "        set parts[1] --(string replace -a -- - _ (string sub -s 3 -- $parts[1]))\n"
    "        set words[$i] (string join = -- $parts)\n"
    "    end\n"
    "    for offered in (complete -C (string join ' ' -- (string escape -- $words[1..-2]) "
    "$words[-1]))\n"
    "        if test -n \"$is_flag\"\n"
    "            set -l parts (string match -r -- '^--([^=\\t]*)(.*)$' $offered)\n"
    "            echo -- --(string replace -a -- _ - $parts[2])$parts[3]\n"
    "        else\n"
    "            echo -- $offered\n"
    "        end\n"
    "    end\n"
    "end\n";

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
      "# The first argument: how many words come before flags; the others: flags with a value.\n"
      "function __accel_has_script\n"
      "    set -l words (commandline -opc)\n"
      "    set -l is_value no\n"
      "    set -e words[1..$argv[1]]\n"
      "    for word in $words\n"
      "        if test $is_value = yes\n"
      "            set is_value no\n"
      "        else if not string match -q -- '-*' $word\n"
      "            return 0\n"
      "        else if contains -- (string replace -a -- - _ $word) $argv[2..-1]\n"
      "            set is_value yes\n"
      "        end\n"
      "    end\n"
      "    return 1\n"
      "end\n"
      "complete -c accel -n __accel_is_alone -f\n";
  const auto commands = completed_commands();
  for (const CompletedCommand& command : commands)
    out += "complete -c accel -n __accel_is_alone -a " + command.name + " -d " +
           fish_quoted(command.summary) + "\n";
  for (const CompletedCommand& command : commands) out += of_command(command);
  for (const CompletedCommand& command : commands) out += of_programs(command);
  out += std::string(kHyphens) + "for program in accel " + joined(completed_programs(), " ") + "\n";
  return out + "    complete -c $program -n __accel_has_hyphens -f -a '(__accel_hyphened)'\nend\n";
}

}  // namespace accel::launcher

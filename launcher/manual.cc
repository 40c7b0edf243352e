#include "launcher/manual.h"

#include <string_view>

#include "launcher/flag_table.h"

namespace accel::launcher {
namespace {

// A line that begins with a dot or a quote is a request to troff, and a backslash an escape.
std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    out += c == '-' ? "\\-" : c == '\\' ? "\\e" : std::string(1, c);
  }
  return out;
}

std::string flag_head(const FlagSpec& flag) {
  std::string head = ".TP\n";
  if (flag.short_name != 0) head += "\\fB\\-" + std::string(1, flag.short_name) + "\\fR, ";
  head += "\\fB\\-\\-" + troff(flag.name) + "\\fR";
  if (!flag.value_name.empty()) head += " \\fI" + troff(flag.value_name) + "\\fR";
  return head + "\n";
}

}  // namespace

std::string launch_manual() {
  std::string out =
      ".\\\" Written by scripts/generate_docs.sh from the flag table. Do not edit it.\n"
      ".TH ACCEL\\-LAUNCH 1 \"\" \"accel\" \"User Commands\"\n"
      ".SH NAME\n"
      "accel\\-launch \\- start, watch and restart the processes of a training job\n"
      ".SH SYNOPSIS\n"
      ".B accel\\-launch\n"
      "[\\fIflags\\fR] \\fIscript\\fR [\\fIarguments of the script\\fR]\n"
      ".SH DESCRIPTION\n"
      "Starts one process for each rank, with the environment that torch.distributed, Hugging "
      "Face\n"
      "Accelerate and libaccel read. When one fails the others are stopped; the report names the\n"
      "first that failed and why. Words of a flag are joined by underscores or hyphens.\n";
  std::string_view group;
  for (const FlagSpec& flag : flag_table()) {
    if (flag.group != group) {
      group = flag.group;
      out += ".SH " + troff(group) + "\n";
    }
    out += flag_head(flag) + troff(flag.help) + "\n";
    if (!flag.choices.empty()) {
      out += "One of:";
      for (const std::string_view choice : split_choices(flag.choices)) out += " " + troff(choice);
      out += ".\n";
    }
  }
  out +=
      ".SH EXIT STATUS\n"
      "That of the first worker that failed, or 128 + the number of its signal; 130 after "
      "Ctrl\\-C,\n"
      "143 after SIGTERM, 85 when every rank saved after a preemption notice. Errors of the\n"
      "launcher itself: docs/errors.md.\n"
      ".SH SEE ALSO\n"
      ".BR accel (1),\n"
      ".BR accel\\-agent (8)\n";
  return out;
}

std::string launch_completion() {
  std::string flags;
  std::string cases;
  for (const FlagSpec& flag : flag_table()) {
    const std::string name = "--" + std::string(flag.name);
    flags += (flags.empty() ? "" : " ") + name;
    if (flag.kind != FlagKind::kChoice) continue;
    std::string choices;
    for (const std::string_view choice : split_choices(flag.choices)) {
      choices += (choices.empty() ? "" : " ") + std::string(choice);
    }
    cases +=
        "    " + name + ") COMPREPLY=($(compgen -W \"" + choices + "\" -- \"$word\")); return ;;\n";
  }
  return "# Written by scripts/generate_docs.sh from the flag table. Do not edit it.\n"
         "_accel_launch() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "  case $before in\n" +
         cases +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"" +
         flags +
         "\" -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _accel_launch accel-launch\n";
}

}  // namespace accel::launcher

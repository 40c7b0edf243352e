#include "launcher/commands/manual.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/torchrun_flags.h"
#include "launcher/text/choice_list.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {
namespace {

// A line that begins with a dot or a quote is a request to troff, and a backslash an escape.
std::string troff(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    const char c = letter == '\n' ? ' ' : letter;
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

// A section for each group.
std::string flags_of(std::span<const FlagSpec> flags) {
  std::string out;
  std::string_view group;
  for (const FlagSpec& flag : flags) {
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
  return out;
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n"
    "That of the first worker that failed, or 128 + the number of its signal; 130 after "
    "Ctrl\\-C,\n"
    "143 after SIGTERM, 85 when every rank saved after a preemption notice. Errors of the\n"
    "launcher itself: docs/reference/errors.md.\n";

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
  out += flags_of(flag_table());
  out += kExitStatus;
  out +=
      ".SH SEE ALSO\n"
      ".BR accel (1),\n"
      ".BR accel\\-torchrun (1),\n"
      ".BR accel\\-agent (8)\n";
  return out;
}

std::string torchrun_manual() {
  std::string out =
      ".\\\" Written by scripts/generate_docs.sh from the flag table. Do not edit it.\n"
      ".TH ACCEL\\-TORCHRUN 1 \"\" \"accel\" \"User Commands\"\n"
      ".SH NAME\n"
      "accel\\-torchrun \\- accel\\-launch with the defaults of torchrun\n"
      ".SH SYNOPSIS\n"
      ".B accel\\-torchrun\n"
      "[\\fIflags\\fR] \\fIscript\\fR [\\fIarguments of the script\\fR]\n"
      ".SH DESCRIPTION\n"
      "The program of\n"
      ".BR accel\\-launch (1),\n"
      "with its flags and those below. One worker unless a flag says more; ranks and a store for "
      "a\n"
      "single one too; no default configuration file; no variables of Accelerate unless a flag\n"
      "asks for them. PET_\\fINAME\\fR in the environment is the default of a flag of torchrun.\n";
  out += flags_of(torchrun_flags());
  out += kExitStatus;
  return out + ".SH SEE ALSO\n.BR accel\\-launch (1)\n";
}

namespace {

std::string manual_of(const std::string& name,
                      std::string_view summary,
                      const std::vector<CommandDescription>& descriptions,
                      std::string_view see_also) {
  std::string out =
      ".\\\" Written by scripts/generate_docs.sh from the command's flags. Do not edit it.\n.TH "
      "ACCEL\\-" +
      troff(uppercase(name)) + " 1 \"\" \"accel\" \"User Commands\"\n.SH NAME\naccel\\-" +
      troff(name) + " \\- " + troff(summary) + "\n.SH SYNOPSIS\n";
  for (const CommandDescription& description : descriptions)
    out += ".B " + troff(usage(description)) + "\n.br\n";
  for (const CommandDescription& description : descriptions) {
    const bool is_first = &description == &descriptions.front();
    out += is_first ? ".SH DESCRIPTION\n" : ".SH " + troff("accel " + description.name) + "\n";
    out += troff(description.summary) + "\n";
    for (const CommandOption& option : description.options) {
      out += ".TP\n";
      if (!option.short_name.empty()) out += "\\fB" + troff(option.short_name) + "\\fR, ";
      out += "\\fB" + troff(option.name) + "\\fR";
      if (!option.value.empty()) out += " \\fI" + troff(option.value) + "\\fR";
      out += "\n" + troff(option.help) + "\n";
    }
  }
  return out +
         ".SH EXIT STATUS\n0, or that of the error; see docs/reference/errors.md.\n.SH SEE ALSO\n" +
         ".BR accel (1),\n" + std::string(see_also);
}

}  // namespace

std::string command_manual(const LocalCommand& command) {
  return manual_of(
      std::string(command.name), command.summary, describe(command), ".BR accel\\-launch (1)\n");
}

std::string command_manual(const AgentCommand& command) {
  return manual_of(std::string(command.name),
                   command.summary,
                   {describe(command)},
                   ".BR accel\\-agent (8),\n.BR agent.yaml (5)\n");
}

std::string agent_file_manual(std::string_view text) {
  std::string out =
      ".\\\" Written by scripts/generate_docs.sh from configs/agent.yaml. Do not edit it.\n"
      ".TH AGENT.YAML 5 \"\" \"accel\" \"File Formats\"\n"
      ".SH NAME\nagent.yaml \\- the configuration of accel\\-agent\n"
      ".SH DESCRIPTION\n"
      "A YAML file; accel\\-agent reads /etc/accel/agent.yaml, or what \\-\\-config names. Every "
      "key "
      "with\nits default:\n.PP\n.nf\n";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    out += (line.empty() ? ".sp" : troff(line)) + "\n";
    at = end + 1;
  }
  return out + ".fi\n.SH SEE ALSO\n.BR accel\\-agent (8)\n";
}

}  // namespace accel::launcher

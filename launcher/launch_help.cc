#include "launcher/launch_help.h"

#include <algorithm>
#include <string_view>

#include "launcher/choice_list.h"
#include "launcher/flag_table.h"
#include "launcher/torchrun/torchrun_flags.h"
#include "launcher/wrapped_text.h"

namespace accel::launcher {
namespace {

constexpr size_t kHelpIndent = 6;

void append_flag(std::string& out, const FlagSpec& flag) {
  out += "  ";
  if (flag.short_name != 0) {
    out += '-';
    out += flag.short_name;
    out += ", ";
  }
  out += "--";
  out += flag.name;
  if (!flag.value_name.empty()) {
    out += ' ';
    out += flag.value_name;
  }
  out += '\n';
  std::string help(flag.help);
  if (flag.kind == FlagKind::kChoice) help += " One of " + listed_choices(flag.choices) + ".";
  out += wrapped(help, kHelpIndent);
}

// Torchrun's spellings, and what is "(with ...)" something that must be chosen first.
bool is_optional(std::string_view group) {
  return group.find(" (with ") != std::string_view::npos || group == torchrun_flags().front().group;
}

// True for optional groups that no flag of `chosen` belongs to.
bool is_left_out(std::string_view group, const std::vector<std::string>& chosen) {
  if (chosen.empty() || !is_optional(group)) return false;
  return std::none_of(chosen.begin(), chosen.end(), [&](const std::string& name) {
    const FlagSpec* const flag = find_flag(name);
    return flag != nullptr && flag->group == group;
  });
}

}  // namespace

std::string launch_help(const std::vector<std::string>& chosen, bool is_torchrun) {
  const std::string program = is_torchrun ? "accel-torchrun" : "accel-launch";
  std::string out = "Usage: " + program + " [flags] SCRIPT [arguments of the script]\n\n";
  out += wrapped(
      "Starts SCRIPT in N workers with ranks, watches them, and says which failed first "
      "and why. SCRIPT is a program, a .py file, or with -m a Python module. Everything "
      "after it belongs to it; one -- right after it is dropped. Words of a flag are "
      "joined by underscores or hyphens.",
      0);
  if (is_torchrun) {
    out += "\n" + wrapped(
                      "The defaults are those of torchrun, PET_* among them: one worker unless "
                      "--nproc_per_node says more, and no default configuration file.",
                      0);
  }
  std::string_view group;
  for (const FlagSpec& flag : flag_table()) {
    if (is_left_out(flag.group, chosen)) continue;
    if (flag.group != group) {
      group = flag.group;
      out += '\n';
      out += group;
      out += ":\n";
    }
    append_flag(out, flag);
  }
  const std::string number = is_torchrun ? " --nproc_per_node " : " --num_processes ";
  out += "\nExamples:\n  " + program + number + "2 build/examples/digits -- --epochs 15\n  " +
         program + number +
         "4 --max_restarts 3 --log_dir logs train.py\n"
         "\nThe exit status is that of the first worker that failed, or 128 + its signal.\n";
  return out;
}

}  // namespace accel::launcher

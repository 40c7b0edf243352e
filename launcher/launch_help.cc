#include "launcher/launch_help.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "launcher/choice_list.h"
#include "launcher/flag_table.h"
#include "launcher/torchrun/torchrun_flags.h"
#include "launcher/wrapped_text.h"

namespace accel::launcher {
namespace {

constexpr size_t kHelpIndent = 6;

// They run on a machine without a GPU, with one, and with many.
constexpr std::string_view kLaunchExamples[] = {
    "accel-launch --cpu --num_processes 2 build/examples/digits -- --epochs 15",
    "accel-launch --max_restarts 3 --log_dir logs train.py  # a worker for each GPU",
};
constexpr std::string_view kTorchrunExamples[] = {
    "accel-torchrun --cpu --nproc-per-node 2 build/examples/digits -- --epochs 15",
    "accel-torchrun --standalone --nproc-per-node auto --max-restarts 3 train.py",
};

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

// Whether the flag is of the group, or is what the group is "(with ...)".
bool chooses(const GivenFlags::value_type& given, std::string_view group) {
  const auto& [name, value] = given;
  const FlagSpec* const flag = find_flag(name);
  return (flag != nullptr && flag->group == group) ||
         group.ends_with("(with --" + name + " " + value + ")");
}

// True for optional groups that no flag chooses, when flags were given beside --help.
bool is_left_out(std::string_view group, const GivenFlags& given) {
  const std::size_t num_others = given.size() - given.count("help");
  if (num_others == 0 || !is_optional(group)) return false;
  return std::ranges::none_of(given, [&](const auto& flag) { return chooses(flag, group); });
}

void append_flags(std::string& out, std::span<const FlagSpec> flags, const GivenFlags& given) {
  std::string_view group;
  for (const FlagSpec& flag : flags) {
    if (is_left_out(flag.group, given)) continue;
    if (flag.group != group) {
      group = flag.group;
      out += '\n';
      out += group;
      out += ":\n";
    }
    append_flag(out, flag);
  }
}

}  // namespace

std::string launch_help(const GivenFlags& given, bool is_torchrun) {
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
                      "--nproc-per-node says more, and no default configuration file.",
                      0);
  }
  if (is_torchrun) append_flags(out, torchrun_flags(), given);
  std::vector<FlagSpec> others;
  std::ranges::copy_if(flag_table(), std::back_inserter(others), [&](const FlagSpec& flag) {
    return !is_torchrun || flag.group != torchrun_flags().front().group;
  });
  append_flags(out, others, given);
  out += "\nExamples:\n";
  for (const std::string_view example : is_torchrun ? kTorchrunExamples : kLaunchExamples)
    out += "  " + std::string(example) + "\n";
  out += "\nThe exit status is that of the first worker that failed, or 128 + its signal.\n";
  return out;
}

}  // namespace accel::launcher

#include "launcher/flags/launch_help.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/torchrun_flags.h"
#include "launcher/text/choice_list.h"
#include "launcher/text/wrapped_text.h"

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

// Whether the flag is of the group, or is what the group is "(with ...)".
bool chooses(const GivenFlags::value_type& given, std::string_view group) {
  const auto& [name, value] = given;
  const FlagSpec* const flag = find_flag(name);
  return (flag != nullptr && flag->group == group) ||
         group.ends_with("(with --" + name + " " + value + ")");
}

struct Topic {
  std::string_view word;
  std::string_view group;  // how its heading begins
  bool is_for_all = false;
};

constexpr Topic kTopics[] = {{"general", "General", true},
                             {"processes", "Processes", true},
                             {"torchrun", "As torchrun"},
                             {"computing", "Computing", true},
                             {"output", "Output", true},
                             {"failures", "Failures", true},
                             {"watching", "Watching"},
                             {"nodes", "Several nodes"},
                             {"compile", "torch.compile"},
                             {"fsdp", "FSDP"},
                             {"deepspeed", "DeepSpeed"},
                             {"megatron", "Megatron-LM"},
                             {"parallelism", "Parallelism"},
                             {"fp8", "fp8"},
                             {"tpu", "TPU"},
                             {"sagemaker", "Amazon SageMaker"}};

const Topic* find_topic(std::string_view group) {
  const Topic* const topic =
      std::ranges::find_if(kTopics, [&](const Topic& one) { return group.starts_with(one.group); });
  return topic == std::end(kTopics) ? nullptr : topic;
}

// torchrun's own spellings take the place of those of accelerate launch.
bool is_for_all(const Topic& topic, bool is_torchrun) {
  if (topic.word == "torchrun") return is_torchrun;
  return topic.is_for_all && !(is_torchrun && topic.word == "processes");
}

class HelpText {
 public:
  HelpText(const GivenFlags& given, std::string_view topic, bool is_torchrun)
      : given_(given), is_torchrun_(is_torchrun) {
    const bool is_topic =
        topic == "all" || std::ranges::find(kTopics, topic, &Topic::word) != std::end(kTopics);
    if (is_topic) topic_ = topic;
  }

  [[nodiscard]] bool is_of_one_topic() const { return !topic_.empty() && topic_ != "all"; }

  [[nodiscard]] std::string flags() const {
    std::string out;
    std::string_view group;
    for (const FlagSpec& flag : in_order()) {
      if (!is_shown(flag.group)) continue;
      if (flag.group != group) {
        group = flag.group;
        out += '\n';
        out += group;
        out += ":\n";
      }
      append_flag(out, flag);
    }
    return out;
  }

  // "  nodes         13 flags: Several nodes (run the same command on each)".
  [[nodiscard]] std::string other_topics() const {
    constexpr std::size_t kWidth = 14;
    std::string out;
    for (const Topic& topic : kTopics) {
      const auto is_of_topic = [&](const FlagSpec& flag) {
        return flag.group.starts_with(topic.group);
      };
      const auto all = in_order();
      const auto first = std::ranges::find_if(all, is_of_topic);
      if (first == all.end() || is_shown(first->group)) continue;
      out += "  " + std::string(topic.word) + std::string(kWidth - topic.word.size(), ' ') +
             std::to_string(std::ranges::count_if(all, is_of_topic)) +
             " flags: " + std::string(first->group) + "\n";
    }
    if (out.empty()) return out;
    return "\nMore, with --help GROUP, or --help all:\n" + out;
  }

 private:
  [[nodiscard]] bool is_shown(std::string_view group) const {
    if (topic_ == "all") return true;
    const Topic* const topic = find_topic(group);
    if (!topic_.empty()) return topic != nullptr && topic->word == topic_;
    if (topic == nullptr || is_for_all(*topic, is_torchrun_)) return true;
    return std::ranges::any_of(given_, [&](const auto& flag) { return chooses(flag, group); });
  }

  [[nodiscard]] std::vector<FlagSpec> in_order() const {
    std::vector<FlagSpec> flags(flag_table().begin(), flag_table().end());
    if (is_torchrun_)
      std::stable_partition(flags.begin(), flags.end(), [](const FlagSpec& flag) {
        return flag.group == torchrun_flags().front().group;
      });
    return flags;
  }

  const GivenFlags& given_;
  const bool is_torchrun_;
  std::string_view topic_;
};

}  // namespace

std::string_view topic_of(std::string_view group) {
  return find_topic(group)->word;
}

std::string launch_help(const GivenFlags& given, std::string_view topic, bool is_torchrun) {
  const HelpText text(given, topic, is_torchrun);
  if (text.is_of_one_topic()) return text.flags().substr(1);  // without the empty line before
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
  out += text.flags() + text.other_topics();
  out += "\nExamples:\n";
  for (const std::string_view example : is_torchrun ? kTorchrunExamples : kLaunchExamples)
    out += "  " + std::string(example) + "\n";
  out += "\nThe exit status is that of the first worker that failed, or 128 + its signal.\n";
  return out;
}

}  // namespace accel::launcher

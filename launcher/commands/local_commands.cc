#include "launcher/commands/local_commands.h"

#include <algorithm>

#include "launcher/commands/completion_command.h"
#include "launcher/commands/config_command.h"
#include "launcher/commands/env_command.h"
#include "launcher/commands/estimate_memory.h"
#include "launcher/commands/export/export_command.h"
#include "launcher/commands/generate_command.h"
#include "launcher/commands/merge_weights.h"
#include "launcher/commands/plan_command.h"
#include "launcher/commands/plot/plot_command.h"
#include "launcher/commands/test_command.h"
#include "launcher/commands/to_fsdp2.h"
#include "launcher/commands/tpu_config.h"
#include "launcher/commands/train_command.h"
#include "launcher/flags/command_parser.h"
#include "launcher/text/choice_list.h"

namespace accel::launcher {

std::span<const LocalCommand> local_commands() noexcept {
  static constexpr LocalCommand kCommands[] = {
      {"completion", "the script with which a shell completes these commands", completion_command},
      {"config",
       "ask how you train, and write a configuration file",
       config_command,
       "default,update"},
      {"env", "what is installed on this machine, for a bug report", env_command},
      {"estimate-memory",
       "what a model takes, from its files or its config.json",
       estimate_memory_command},
      {"export", "write a model of Python as a file that trains without Python", export_command},
      {"generate", "generate tokens with an exported model of any size", generate_command},
      {"merge-weights",
       "make one model.safetensors of a sharded checkpoint",
       merge_weights_command},
      {"plan", "what training an exported model takes, with activations", plan_command},
      {"plot", "draw the curves of runs, on the terminal or as SVG", plot_command},
      {"test", "see whether workers of this set-up can train together", test_command},
      {"to-fsdp2", "write an FSDP 1 configuration as one of FSDP 2", to_fsdp2_command},
      {"tpu-config",
       "run commands on all workers of a TPU pod, through gcloud",
       tpu_config_command},
      {"train", "train an exported model on files, without Python", train_command},
  };
  return kCommands;
}

const LocalCommand* find_local_command(std::string_view name) noexcept {
  const auto all = local_commands();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const LocalCommand& command) { return command.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<CommandDescription> describe(const LocalCommand& command) {
  std::vector<CommandDescription> descriptions;
  const auto describe_one = [&](const std::vector<std::string>& words) {
    const CommandRecorder recorder;
    (void)command.run(words);
    descriptions.push_back(recorder.description());
  };
  describe_one({"--help"});
  for (const std::string_view word : split_choices(command.subcommands))
    describe_one({std::string(word), "--help"});
  return descriptions;
}

}  // namespace accel::launcher

#include "launcher/commands/completion_command.h"

#include <cstdio>

#include "launcher/commands/completion/completed_command.h"
#include "launcher/flags/command_parser.h"

namespace accel::launcher {

int completion_command(const std::vector<std::string>& arguments) {
  std::string shell;
  CommandParser line(
      "completion",
      "Print the script with which a shell completes accel and accel-launch. In bash: "
      "eval \"$(accel completion bash)\"; in zsh, after compinit: eval \"$(accel "
      "completion zsh)\"; in fish: accel completion fish | source.");
  line.app()
      .add_option("shell", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  if (const auto status = line.parse(arguments)) return *status;
  const std::string script = shell == "bash"  ? bash_completion()
                             : shell == "zsh" ? zsh_completion()
                                              : fish_completion();
  std::fputs(script.c_str(), stdout);
  return 0;
}

}  // namespace accel::launcher

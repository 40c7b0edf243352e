#include "launcher/commands/generate_command.h"

#include "launcher/commands/libaccel_program.h"
#include "launcher/flags/command_parser.h"
#include "train/generation/generate_settings.h"

namespace accel::launcher {
namespace {

constexpr const char* kGenerate = "generate";
constexpr const char* kGenerateSummary =
    "Generate tokens with an exported model, without Python. Its weights may be many times the "
    "memory: those that do not fit stay on disk, and one read serves all prompts. Prints the new "
    "tokens of each prompt on a line.";

}  // namespace

int generate_command(const std::vector<std::string>& arguments) {
  CommandParser line(kGenerate, kGenerateSummary);
  train::GenerateSettings settings;
  train::add_flags(line.app(), settings);
  if (const auto status = line.parse(arguments)) return *status;
  return become_trainer(kGenerate, arguments);
}

}  // namespace accel::launcher

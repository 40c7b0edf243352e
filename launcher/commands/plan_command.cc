#include "launcher/commands/plan_command.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <unistd.h>

#include "launcher/commands/libaccel_program.h"
#include "launcher/flags/command_parser.h"
#include "launcher/system/program_output.h"
#include "train/plan_settings.h"

namespace accel::launcher {
namespace {

constexpr const char* kPlan = "plan";
constexpr const char* kPlanSummary =
    "The most memory that a process takes to train an exported model, with activations, for each "
    "way to divide it. Nothing is trained, and no weights are read.";

}  // namespace

int plan_command(const std::vector<std::string>& arguments) {
  CommandParser line(kPlan, kPlanSummary);
  train::PlanSettings settings;
  train::add_flags(line.app(), settings);
  if (const auto status = line.parse(arguments)) return *status;
  const auto program = find_libaccel_program(kTrainerProgram);
  if (!program) return print_error(kPlan, program.error());
  std::vector<std::string> words = {*program, kPlan};
  std::ranges::transform(arguments, std::back_inserter(words), with_underscores);
  const std::vector<char*> pointers = pointers_to(words);
  ::execv(program->c_str(), pointers.data());
  return print_error(kPlan,
                     Error(ErrorCode::kExecFailed,
                           *program + " cannot be started: " + std::strerror(errno),
                           "see whether the file is a program for this machine"));
}

}  // namespace accel::launcher

#include "launcher/commands/plan_command.h"

#include "launcher/commands/libaccel_program.h"
#include "launcher/flags/command_parser.h"
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
  return become_trainer(kPlan, arguments);
}

}  // namespace accel::launcher

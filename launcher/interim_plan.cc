// The smallest launch: --num_processes N, a program and its arguments. Replaced by launch_plan.cc
// and report.cc, which own these functions.

#include <unistd.h>

#include "launcher/dry_run.h"
#include "launcher/launch_plan.h"
#include "launcher/report.h"

namespace accel::launcher {

LaunchHost real_launch_host() {
  LaunchHost host;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos && equals > 0) {
      host.environment[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  host.job_suffix = std::to_string(::getpid());
  return host;
}

Result<LaunchPlan> resolve_launch(const std::vector<std::string>& arguments,
                                  const LaunchHost& host) {
  LaunchPlan plan;
  int num_processes = 1;
  std::size_t next = 0;
  while (next < arguments.size() && arguments[next].starts_with("--")) {
    if (next + 1 < arguments.size() && arguments[next] == "--num_processes") {
      num_processes = std::stoi(arguments[next + 1]);
    } else if (next + 1 < arguments.size() && arguments[next] == "--max_restarts") {
      plan.spec.restart.max_restarts = std::stoi(arguments[next + 1]);
    } else {
      return Error(ErrorCode::kUnknownFlag, arguments[next]);
    }
    next += 2;
  }
  std::vector<std::string> argv(arguments.begin() + static_cast<std::ptrdiff_t>(next),
                                arguments.end());
  if (argv.empty()) return Error(ErrorCode::kUsage, "no program was given");
  if (argv.size() > 1 && argv[1] == "--") argv.erase(argv.begin() + 1);
  plan.spec.job_id = "job-" + host.job_suffix;
  plan.spec.env = host.environment;
  plan.spec.identity.world_size = plan.spec.identity.local_world_size = num_processes;
  for (int rank = 0; rank < num_processes; ++rank) {
    plan.spec.workers.push_back({.local_rank = rank, .global_rank = rank, .argv = argv});
  }
  return plan;
}

std::string render_dry_run(const LaunchPlan& plan) {
  return plan.spec.job_id + "\n";
}

std::string render_report(const supervisor::JobOutcome& outcome, int, const ReportStyle& style) {
  std::string text;
  if (!outcome.success) {
    text +=
        style.program + ": " + outcome.reason + ", exit code " + std::to_string(outcome.exit_code);
    text += "\n";
  }
  for (const auto& leftover : outcome.leftovers) text += "leftover " + leftover.command + "\n";
  for (const auto& notice : outcome.notices) text += notice + "\n";
  return text;
}

}  // namespace accel::launcher

// accel: all commands in one program. `accel launch` is accel-launch; the others speak to an agent.

#include <cstdio>
#include <string>
#include <vector>

#include "launcher/cluster_library.h"
#include "launcher/cmd_launch.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments.front() == "launch") {
    return accel::launcher::cmd_launch({arguments.begin() + 1, arguments.end()});
  }
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h") {
    std::printf(
        "Usage: accel COMMAND [argument ...]\n\n"
        "  launch     start workers on this machine (accel-launch)\n"
        "  run        submit a job to the agent of this machine and follow it\n"
        "  status     the jobs of an agent, or one job\n"
        "  logs       what the workers of a job wrote\n"
        "  stop       stop a job\n"
        "  signal     send a signal to the workers of a job\n"
        "  scale      change how many nodes a job has\n"
        "  diagnose   where the workers of a job stand\n"
        "  ledger     where the time of a job went\n"
        "  watch      each change of a job, or of all\n"
        "  drain      let the node start no more jobs; undrain takes it back\n\n"
        "`accel COMMAND --help` says more. docs/agent.md explains agents.\n");
    return arguments.empty() ? 2 : 0;
  }
  const auto status = accel::launcher::run_cluster_command(arguments);
  if (status) return *status;
  std::fprintf(stderr, "%s\n", status.error().render("accel").c_str());
  return accel::error_info(status.error().code()).exit_status;
}

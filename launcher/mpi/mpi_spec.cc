#include "launcher/mpi/mpi_spec.h"

namespace accel::launcher {

Result<void> hand_to_mpirun(supervisor::JobSpec& spec,
                            const MpiSettings& settings,
                            const LaunchHost& host) {
  const auto program = host.mpi_program();
  if (!program) return program.error();
  supervisor::WorkerSpec& starter = spec.workers.front();
  starter.is_starter = true;
  starter.cpus.clear();  // mpirun binds its ranks itself
  starter.argv = mpirun_words(settings, *program, starter.argv);
  for (auto& [name, value] : starter.env) spec.env[name] = std::move(value);
  starter.env.clear();
  add_mpi_environment(spec.env, host.environment, settings, *program);
  return {};
}

}  // namespace accel::launcher

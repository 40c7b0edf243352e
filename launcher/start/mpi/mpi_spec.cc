#include "launcher/start/mpi/mpi_spec.h"

#include "launcher/start/ssh/listed_variables.h"

namespace accel::launcher {

Result<void> hand_to_mpirun(supervisor::JobSpec& spec,
                            const MpiSettings& settings,
                            const LaunchHost& host) {
  const auto program = host.mpi_program();
  if (!program) return program.error();
  if (auto checked = check_mpi_program(settings, *program); !checked) return checked;
  const auto listed = settings.hosts ? read_listed_variables(host.environment) : Result(EnvMap());
  if (!listed) return listed.error();
  supervisor::WorkerSpec& starter = spec.workers.front();
  starter.is_starter = true;
  starter.cpus.clear();  // mpirun binds its ranks itself
  starter.argv = mpirun_words(settings, *program, starter.argv);
  for (auto& [name, value] : starter.env) spec.env[name] = std::move(value);
  starter.env.clear();
  add_mpi_environment(spec.env, host.environment, *listed, settings, *program);
  // The ranks are mpirun's; of DeepSpeed's plan for one worker here its store and identity go.
  spec.env_mode = EnvMode::kSimple;
  spec.store.enabled = false;
  return {};
}

}  // namespace accel::launcher

#include "launcher/workers/worker_environment.h"

#include "launcher/devices/gpu_list.h"
#include "launcher/workers/launcher_variables.h"

namespace accel::launcher {
namespace {

const char* python_bool(bool value) {
  return value ? "True" : "False";
}

void add_dynamo(EnvMap& env, const DynamoOptions& dynamo) {
  env["ACCELERATE_DYNAMO_BACKEND"] = dynamo.backend;
  env["ACCELERATE_DYNAMO_MODE"] = dynamo.mode;
  env["ACCELERATE_DYNAMO_USE_FULLGRAPH"] = python_bool(dynamo.use_fullgraph);
  env["ACCELERATE_DYNAMO_USE_DYNAMIC"] = python_bool(dynamo.use_dynamic);
  env["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] = python_bool(dynamo.use_regional_compilation);
}

void add_accelerate(EnvMap& env, const WorkerSettings& settings) {
  // Workers on GPUs are not told; what the user set stays.
  if (settings.use_cpu || !settings.is_like_torchrun())
    env["ACCELERATE_USE_CPU"] = python_bool(settings.use_cpu);
  env["ACCELERATE_MIXED_PRECISION"] = settings.mixed_precision;
  // As the peer: DeepSpeed has a compiler of its own.
  if (!settings.strategies.deepspeed) add_dynamo(env, settings.dynamo);
}

// Inside a worker of another accel-launch its ranks would make our workers look like members of its
// job.
void drop_outer_identity(EnvMap& env) {
  if (env.count("ACCEL_JOB_ID") == 0) return;
  WorkerIdentity any;
  any.job_id = any.node_id = any.instance = any.channel = any.error_file = "any";
  for (const auto& [name, value] : render_worker_env(any, EnvMode::kDistributed)) env.erase(name);
  env.erase("ACCEL_LOCAL_RANK");
}

}  // namespace

EnvMap base_environment(const EnvMap& inherited,
                        const WorkerSettings& settings,
                        EnvMode mode,
                        bool is_python) {
  EnvMap env = inherited;
  drop_outer_identity(env);
  env.erase(kSlurmFolderVariable);
  env.erase(kJobTokenVariable);  // workers show it to nobody, and many write their environment down
  if (settings.tells_accelerate) add_accelerate(env, settings);
  for (const auto& [name, value] : settings.strategies.variables) env[name] = value;
  for (const auto& [name, value] : settings.device_variables) env[name] = value;
  if (settings.debug) env["ACCELERATE_DEBUG_MODE"] = "true";
  if (settings.enable_cpu_affinity) env["ACCELERATE_CPU_AFFINITY"] = "1";
  if (settings.gpu_ids != "all") {
    const Accelerator* const other = settings.accelerator;
    const char* const variable = other ? other->visible_variable : "CUDA_VISIBLE_DEVICES";
    env[variable] = without_repeats(settings.gpu_ids);
  }
  if (is_python && !settings.strict_compat) env.try_emplace("PYTHONUNBUFFERED", "1");
  if (mode == EnvMode::kDistributed) env.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  return env;
}

bool decides_num_threads(const EnvMap& inherited, const WorkerSettings& settings) {
  return !settings.num_cpu_threads && !settings.strict_compat &&
         inherited.count("OMP_NUM_THREADS") == 0;
}

EnvMap thread_environment(const EnvMap& inherited,
                          const WorkerSettings& settings,
                          int num_threads) {
  EnvMap env;
  if (inherited.count("KMP_BLOCKTIME") == 0) env["KMP_BLOCKTIME"] = "1";
  // A user's own OMP_NUM_THREADS also guides MKL, OpenBLAS and numexpr: nothing to add.
  if (!settings.num_cpu_threads && !decides_num_threads(inherited, settings)) return env;
  const std::string threads = std::to_string(settings.num_cpu_threads.value_or(num_threads));
  env["OMP_NUM_THREADS"] = threads;
  for (const char* name : {"MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"}) {
    if (inherited.count(name) == 0) env[name] = threads;
  }
  return env;
}

}  // namespace accel::launcher

#include "launcher/plan/cpu_fallback.h"

#include "launcher/devices/other_devices.h"

namespace accel::launcher {
namespace {

// Workers look for a device by themselves, as one job.
bool need_to_be_told(const CommandLine& line, const LaunchSettings& settings) {
  if (line.is_torchrun || line.is_on("strict_compat") || settings.use_cpu) return false;
  if (settings.accelerator != nullptr || settings.tpu) return false;
  if (settings.strategies.deepspeed || settings.strategies.megatron) return false;
  if (!starts_workers_here(settings.start)) return false;
  const auto* nodes = std::get_if<ElasticSettings>(&settings.start);
  return settings.world_size() > 1 || (nodes != nullptr && nodes->max_nodes > 1);
}

}  // namespace

bool falls_back_to_cpu(const CommandLine& line,
                       const LaunchSettings& settings,
                       const std::function<bool()>& has_device) {
  return need_to_be_told(line, settings) && !has_device();
}

bool has_any_device(const LaunchHost& host) {
  return (host.num_gpus && host.num_gpus() > 0) || has_other_devices(host.environment);
}

void fall_back_to_cpu(const CommandLine& line,
                      const LaunchHost& host,
                      LaunchSettings& settings,
                      std::vector<std::string>& notices,
                      Faults& faults) {
  if (!falls_back_to_cpu(line, settings, [&host] { return has_any_device(host); })) return;
  if (settings.gpu_ids != "all") {
    return faults.add(
        Error(ErrorCode::kUnsupported,
              line.spelled("gpu_ids") + " is " + settings.gpu_ids + ", but no GPU is visible",
              "mend the driver or CUDA_VISIBLE_DEVICES, or give --cpu to train on the CPU"));
  }
  settings.use_cpu = true;
  notices.emplace_back("no GPU is visible: the workers compute on the CPU, as --cpu would say");
}

}  // namespace accel::launcher

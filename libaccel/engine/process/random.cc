// The generators of LibTorch, seen through at::Context, which knows those of the GPUs when they are
// there.

#include <mutex>
#include <string>

#include <ATen/Context.h>

#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>
#include <accel/state.h>

namespace accel {
namespace {

constexpr const char* kCpuName = "torch_manual_seed";

std::string cuda_name(int index) {
  return "torch_cuda_manual_seed." + std::to_string(index);
}

int num_cuda_devices() {
  return at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
}

at::Generator default_generator(at::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor get_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void restore_state(at::Generator generator, const at::Tensor& state, const std::string& name) {
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state.cpu().contiguous());
  } catch (const c10::Error& cause) {
    throw Error(ErrorCode::kCheckpointMismatch,
                "the random state '" + name +
                    "' does not fit its generator: " + std::string(cause.what_without_backtrace()),
                "load a state that was saved on this kind of device");
  }
}

at::Generator generator_of(RNGType type, const std::optional<at::Generator>& generator) {
  switch (type) {
    case RNGType::kTorch:
      return default_generator(at::kCPU);
    case RNGType::kGenerator:
      if (generator && generator->defined()) return *generator;
      throw Error(ErrorCode::kInvalidArgument,
                  "RNGType::kGenerator was asked for, but no generator was given",
                  "pass the generator to synchronize_rng_states()");
    case RNGType::kCuda:
      if (num_cuda_devices() > 0) return default_generator(PartialState().device());
      [[fallthrough]];
    default:
      throw Error(
          ErrorCode::kUnsupported,
          "there is no random generator of type '" + std::string(to_string(type)) + "' here",
          "leave it out of rng_types");
  }
}

}  // namespace

void set_seed(std::uint64_t seed, const SeedOptions& options) {
  if (options.device_specific) seed += static_cast<std::uint64_t>(PartialState().process_index());
  at::manual_seed(seed);
  if (options.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
}

StateDict rng_state() {
  StateDict state;
  state.tensors[kCpuName] = get_state(default_generator(at::kCPU));
  for (int i = 0; i < num_cuda_devices(); ++i) {
    state.tensors[cuda_name(i)] =
        get_state(default_generator({at::kCUDA, static_cast<at::DeviceIndex>(i)}));
  }
  return state;
}

void set_rng_state(const StateDict& state) {
  const auto cpu = state.tensors.find(kCpuName);
  if (cpu == state.tensors.end()) {
    throw Error(ErrorCode::kCheckpointMismatch,
                "the random states have no '" + std::string(kCpuName) + "'",
                "load states that rng_state() returned");
  }
  restore_state(default_generator(at::kCPU), cpu->second, kCpuName);
  for (int i = 0; i < num_cuda_devices(); ++i) {
    const auto found = state.tensors.find(cuda_name(i));
    if (found == state.tensors.end()) continue;
    restore_state(default_generator({at::kCUDA, static_cast<at::DeviceIndex>(i)}),
                  found->second,
                  found->first);
  }
}

void synchronize_rng_states(const std::vector<RNGType>& types,
                            const std::optional<at::Generator>& generator) {
  for (const RNGType type : types) {
    at::Generator chosen = generator_of(type, generator);
    const at::Tensor state = broadcast(get_state(chosen));
    restore_state(chosen, state, std::string(to_string(type)));
  }
}

}  // namespace accel

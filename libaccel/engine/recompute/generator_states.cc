#include "libaccel/engine/recompute/generator_states.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include "libaccel/interception/whole_operators.h"

namespace accel::recompute {

bool draws(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return true;
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.name() == "generator";
  });
}

GeneratorStates::GeneratorStates() {
  // A state is a tensor: its operators are not the program's.
  const interception::NoHandlers own;
  const auto add = [this](const at::Device& device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  };
  add(at::kCPU);
  const int num_gpus =
      at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  for (int gpu = 0; gpu < num_gpus; ++gpu) add({at::kCUDA, static_cast<at::DeviceIndex>(gpu)});
}

void GeneratorStates::restore() const {
  const interception::NoHandlers own;
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace accel::recompute

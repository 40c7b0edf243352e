// Options: what C's structs ask for, as options of C++. Pure, but for one look into the environment.
//
// Throws kInvalidArgument naming the field.
#pragma once

#include <cstdint>
#include <memory>

#include <accel/accelerator_options.h>
#include <accel/c/accel.h>
#include <accel/schedulers.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accel::c_interface {

[[nodiscard]] AcceleratorOptions accelerator_options(const accel_options& options);

[[nodiscard]] accel_optimizer_options default_optimizer(const char* name);
// Of the module's trained parameters.
[[nodiscard]] std::shared_ptr<torch::optim::Optimizer> make_optimizer(
    const accel_optimizer_options& options, const torch::nn::Module& module);

[[nodiscard]] accel_schedule default_schedule(const char* name);
// Of the number of optimizer steps.
[[nodiscard]] LrFactor lr_factor(const accel_schedule& schedule);

}  // namespace accel::c_interface

// NamedOptimizer: the optimizers that flags name.
//
// Threads:  pure.
#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace accel::train {

// Of the parameters that are trained. name: "adamw", "adam" or "sgd".
[[nodiscard]] std::shared_ptr<torch::optim::Optimizer> named_optimizer(
    const std::string& name, double lr, double weight_decay, const torch::nn::Module& net);

}  // namespace accel::train

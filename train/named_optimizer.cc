#include "train/named_optimizer.h"

#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace accel::train {

std::shared_ptr<torch::optim::Optimizer> named_optimizer(const std::string& name,
                                                         double lr,
                                                         double weight_decay,
                                                         const torch::nn::Module& net) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : net.parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  if (name == "sgd") {
    return std::make_shared<torch::optim::SGD>(
        trained, torch::optim::SGDOptions(lr).weight_decay(weight_decay));
  }
  if (name == "adam") {
    return std::make_shared<torch::optim::Adam>(
        trained, torch::optim::AdamOptions(lr).weight_decay(weight_decay));
  }
  return std::make_shared<torch::optim::AdamW>(
      trained, torch::optim::AdamWOptions(lr).weight_decay(weight_decay));
}

}  // namespace accel::train

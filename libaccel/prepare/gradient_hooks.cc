#include "libaccel/prepare/gradient_hooks.h"

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accel {

Error second_gradient(const NamedParameter& parameter) {
  return Error(ErrorCode::kInvalidArgument,
               "the parameter " + parameter.name + " got a second gradient for one forward pass",
               "add the losses and run one backward pass; with checkpointed activations set "
               "AcceleratorOptions.ddp.static_graph = true");
}

GradientHooks::GradientHooks(const std::vector<NamedParameter>& parameters,
                             const OnGradient& on_gradient) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].tensor);
    const auto key =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [on_gradient, i](const torch::autograd::variable_list& outputs,
                             const torch::autograd::variable_list& inputs) {
              on_gradient(i, inputs.at(0));
              return outputs;
            }));
    hooks_.push_back({std::move(accumulator), key});
  }
}

GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

}  // namespace accel

#include "libaccel/interception/backward_hooks.h"

#include <memory>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accel::interception {
namespace {

using torch::autograd::variable_list;

// By which an object knows its own hook among those of others.
using Call = std::shared_ptr<const std::function<void()>>;

class BeforeAdding final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeAdding(Call call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& gradients) override {
    (*call_)();
    return gradients;
  }
  [[nodiscard]] bool is_of(const Call& call) const noexcept { return call_ == call; }

 private:
  Call call_;
};

}  // namespace

bool is_in_backward() noexcept {
  return torch::autograd::get_current_node() != nullptr;
}

void call_at_end_of_backward(std::function<void()> callback) {
  // LibTorch calls it where it lies in a list, which moves when a callback asks for another one.
  const auto shared = std::make_shared<const std::function<void()>>(std::move(callback));
  torch::autograd::Engine::get_default_engine().queue_callback([shared] {
    const Call running = shared;
    (*running)();
  });
}

GradientHook before_adding(const at::Tensor& parameter, std::function<void()> call) {
  const auto shared = std::make_shared<const std::function<void()>>(std::move(call));
  torch::autograd::impl::add_hook(parameter, std::make_unique<BeforeAdding>(shared));
  return GradientHook([parameter, shared] {
    std::erase_if(torch::autograd::impl::hooks(parameter), [&shared](const auto& hook) {
      const auto* const own = dynamic_cast<const BeforeAdding*>(hook.get());
      return own != nullptr && own->is_of(shared);
    });
  });
}

GradientHook behind_adding(const at::Tensor& parameter,
                           std::function<void(const at::Tensor& arrived)> call) {
  // The parameter itself holds its node weakly.
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  const auto key =
      accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [call = std::move(call)](const variable_list& outputs, const variable_list& inputs) {
            call(inputs.at(0));
            return outputs;
          }));
  return GradientHook([accumulator, key] { accumulator->del_post_hook(key); });
}

}  // namespace accel::interception

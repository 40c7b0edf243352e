#include "libaccel/interception/backward_hooks.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accel::interception {
namespace {

using torch::autograd::variable_list;

thread_local bool t_is_forward_again = false;

// By which an object knows its own hook among those of others.
using OnGradient = std::function<void(const at::Tensor&)>;
using Call = std::shared_ptr<const OnGradient>;

class BeforeAdding final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeAdding(Call call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& gradients) override {
    (*call_)(gradients.empty() ? at::Tensor() : gradients.front());
    return gradients;
  }
  [[nodiscard]] bool is_of(const Call& call) const noexcept { return call_ == call; }

 private:
  Call call_;
};

class ClearingArriving final : public torch::autograd::FunctionPreHook {
 public:
  explicit ClearingArriving(Call call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& gradients) override {
    variable_list zeros;
    for (const at::Tensor& gradient : gradients)
      zeros.push_back(gradient.defined() ? at::zeros_like(gradient) : gradient);
    return zeros;
  }
  [[nodiscard]] bool is_of(const Call& call) const noexcept { return call_ == call; }

 private:
  Call call_;
};

// LibTorch's record of a backward owns it, and ends with the backward, however that ends.
class AtEnd {
 public:
  AtEnd(std::function<void()> callback, std::function<void()> on_exception)
      : callback_(std::move(callback)), on_exception_(std::move(on_exception)) {}
  ~AtEnd() {
    if (on_exception_) on_exception_();
  }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

  void run() {
    on_exception_ = nullptr;
    callback_();
  }

 private:
  std::function<void()> callback_;
  std::function<void()> on_exception_;
};

// impl::add_hook() takes the first one alone.
template <typename Hook>
GradientHook put_before_adding(const at::Tensor& parameter, const Call& call) {
  torch::autograd::impl::hooks(parameter).push_back(std::make_unique<Hook>(call));
  return GradientHook([parameter, call] {
    std::erase_if(torch::autograd::impl::hooks(parameter), [&call](const auto& hook) {
      const auto* const own = dynamic_cast<const Hook*>(hook.get());
      return own != nullptr && own->is_of(call);
    });
  });
}

}  // namespace

bool is_in_backward() noexcept {
  return !t_is_forward_again && torch::autograd::get_current_node() != nullptr;
}

ForwardAgain::ForwardAgain() noexcept : was_on_(std::exchange(t_is_forward_again, true)) {}

ForwardAgain::~ForwardAgain() {
  t_is_forward_again = was_on_;
}

void call_at_end_of_backward(std::function<void()> callback) {
  call_at_end_of_backward(std::move(callback), {});
}

void call_at_end_of_backward(std::function<void()> callback, std::function<void()> on_exception) {
  // LibTorch calls it where it lies in a list, which moves when a callback asks for another one.
  const auto shared = std::make_shared<AtEnd>(std::move(callback), std::move(on_exception));
  torch::autograd::Engine::get_default_engine().queue_callback([shared] {
    const auto running = shared;
    running->run();
  });
}

GradientHook before_adding(const at::Tensor& parameter, OnGradient call) {
  return put_before_adding<BeforeAdding>(parameter,
                                         std::make_shared<const OnGradient>(std::move(call)));
}

GradientHook clearing_arriving(const at::Tensor& parameter) {
  return put_before_adding<ClearingArriving>(parameter, std::make_shared<const OnGradient>());
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

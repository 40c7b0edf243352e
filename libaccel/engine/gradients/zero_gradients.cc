// A chain of nodes, one for each parameter, from the last to the first, as a backward comes by them: each gives its parameter a
// gradient and hands nothing on but the turn. The engine adds a gradient up before it goes on, so that one is held at a time.

#include "libaccel/engine/gradients/zero_gradients.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "libaccel/engine/gradients/divided_gradients.h"

namespace accel {
namespace {

class ZeroGradient final : public torch::autograd::Node {
 public:
  ZeroGradient(const at::Tensor& parameter, NoGradient gradient)
      : parameter_(parameter), gradient_(gradient) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& turn) override {
    torch::autograd::variable_list gradients(num_outputs());
    if (gradient_ == NoGradient::kIsZero) gradients[0] = zeros_like_parameter();
    if (gradients.size() > 1) gradients[1] = std::move(turn[0]);
    return gradients;
  }

 private:
  [[nodiscard]] at::Tensor zeros_like_parameter() const {
    return at::empty_strided(
               parameter_.sizes(),
               parameter_.strides(),
               at::TensorOptions(parameter_.scalar_type()).device(parameter_.device()))
        .zero_();
  }

  at::Tensor parameter_;
  NoGradient gradient_;
};

}  // namespace

at::Tensor output_without_forward(const std::vector<NamedParameter>& parameters,
                                  NoGradient gradient) {
  at::Tensor output = at::zeros({});
  std::shared_ptr<torch::autograd::Node> last;
  for (const NamedParameter& parameter : parameters) {
    const std::shared_ptr<ZeroGradient> node(new ZeroGradient(parameter.tensor, gradient),
                                             torch::autograd::deleteNode);
    node->add_next_edge(torch::autograd::impl::gradient_edge(parameter.tensor));
    if (last != nullptr) node->add_next_edge(torch::autograd::Edge(last, 0));
    node->add_input_metadata(output);
    last = node;
  }
  if (last != nullptr)
    torch::autograd::impl::set_gradient_edge(output, torch::autograd::Edge(last, 0));
  return output;
}

bool has_gradients(const std::vector<NamedParameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const NamedParameter& parameter) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) return false;
    return sharding::is_stand_in(gradient) || gradient.count_nonzero().item<std::int64_t>() > 0;
  });
}

void release_gradients(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) parameter.tensor.mutable_grad().reset();
}

}  // namespace accel

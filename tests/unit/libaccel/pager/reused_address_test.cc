// What paging rests on: a kernel reads the weights that are at an address now, not those that were there before.
//
// The pager gives the same few buffers to one parameter after another, through the storage, which bumps no version
// counter. A library that keeps a weight in a packed form, and finds it again by its address, would go on with the old
// numbers and say nothing (oneDNN packs weights; LibTorch keeps such forms for frozen graphs). Each operator below runs
// with two different weights at one address, forward and backward, and must give what it gives with weights that have an
// address of their own, to the bit.

#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

namespace accel::reused_address_test {
namespace {

using Module = std::shared_ptr<torch::nn::Module>;
using Forward = std::function<torch::Tensor(torch::nn::Module&, const torch::Tensor&)>;

struct Operator {
  const char* name;
  std::function<Module()> make;
  Forward forward;
  std::vector<std::int64_t> input_shape;
};

template <typename M>
Operator operator_of(const char* name,
                     std::function<Module()> make,
                     std::vector<std::int64_t> shape) {
  return {name,
          std::move(make),
          [](torch::nn::Module& module, const torch::Tensor& input) {
            return dynamic_cast<M&>(module).forward(input);
          },
          std::move(shape)};
}

// Large enough that oneDNN takes them rather than a plain loop.
std::vector<Operator> operators() {
  using namespace torch::nn;  // NOLINT: a list of its modules
  return {
      operator_of<LinearImpl>(
          "linear", [] { return std::make_shared<LinearImpl>(256, 192); }, {64, 256}),
      operator_of<Conv2dImpl>(
          "conv2d",
          [] { return std::make_shared<Conv2dImpl>(Conv2dOptions(32, 64, 3).padding(1)); },
          {4, 32, 24, 24}),
      operator_of<ConvTranspose2dImpl>(
          "conv_transpose2d",
          [] { return std::make_shared<ConvTranspose2dImpl>(ConvTranspose2dOptions(32, 16, 3)); },
          {4, 32, 16, 16}),
      {"lstm",
       [] { return std::make_shared<LSTMImpl>(LSTMOptions(64, 96).num_layers(2)); },
       [](Module::element_type& module, const torch::Tensor& input) {
         return std::get<0>(dynamic_cast<LSTMImpl&>(module).forward(input));
       },
       {12, 8, 64}},
  };
}

struct Outcome {
  torch::Tensor output;
  torch::Tensor input_gradient;
  std::vector<torch::Tensor> weight_gradients;
};

Outcome run(const Operator& op,
            torch::nn::Module& module,
            const torch::Tensor& input,
            bool trains) {
  Outcome outcome;
  if (!trains) {
    const torch::NoGradGuard no_grad;
    outcome.output = op.forward(module, input).clone();
    return outcome;
  }
  module.zero_grad();
  const torch::Tensor leaf = input.detach().clone().requires_grad_();
  const torch::Tensor output = op.forward(module, leaf);
  output.sum().backward();
  outcome.output = output.detach().clone();
  outcome.input_gradient = leaf.grad().clone();
  for (const auto& weight : module.parameters())
    outcome.weight_gradients.push_back(weight.grad().clone());
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(torch::equal(a.output, b.output));
  if (!a.input_gradient.defined()) return;
  EXPECT_TRUE(torch::equal(a.input_gradient, b.input_gradient));
  for (std::size_t i = 0; i < a.weight_gradients.size(); ++i)
    EXPECT_TRUE(torch::equal(a.weight_gradients[i], b.weight_gradients[i])) << "gradient " << i;
}

// Puts the bytes of `weights` where the parameters of `module` are, without a word to LibTorch.
void overwrite(torch::nn::Module& module, const std::vector<torch::Tensor>& weights) {
  const auto parameters = module.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    std::memcpy(parameters[i].data_ptr(), weights[i].data_ptr(), weights[i].nbytes());
}

std::vector<torch::Tensor> copies_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

class ReusedAddress
    : public ::testing::TestWithParam<std::tuple<std::size_t, torch::ScalarType, bool>> {
 protected:
  void SetUp() override {
    torch::manual_seed(5);
    std::tie(index_, type_, trains_) = GetParam();
    op_ = operators().at(index_);
    SCOPED_TRACE(op_.name);
    input_ = torch::randn(op_.input_shape).to(type_);
  }
  Module make() const {
    Module module = op_.make();
    module->to(type_);
    return module;
  }
  Outcome outcome(torch::nn::Module& module) const { return run(op_, module, input_, trains_); }

  std::size_t index_ = 0;
  torch::ScalarType type_ = torch::kFloat;
  bool trains_ = false;
  Operator op_;
  torch::Tensor input_;
};

TEST_P(ReusedAddress, WeightsThatAreWrittenOverAreTheOnesThatAreUsed) {
  const Module first = make();
  const Module second = make();
  const auto second_weights = copies_of(*second);
  const Outcome expected = outcome(*second);

  const Outcome before = outcome(*first);  // whoever keeps a packed form has one now
  (void)outcome(*first);                   // and has seen it used again
  overwrite(*first, second_weights);

  EXPECT_FALSE(torch::equal(before.output, expected.output)) << "a check that could not fail";
  expect_equal(outcome(*first), expected);
}

// As the pager does it: another module's parameters come to the same address, through their storage.
TEST_P(ReusedAddress, AStorageThatIsPointedAtABufferOfBeforeReadsWhatIsThereNow) {
  const Module first = make();
  const Module second = make();
  const auto first_weights = copies_of(*first);
  const auto second_weights = copies_of(*second);
  const Outcome expected = outcome(*second);

  std::vector<std::vector<std::byte>> buffers;
  for (const auto& weight : first_weights) buffers.emplace_back(weight.nbytes() + 64);
  const auto page_in = [&](torch::nn::Module& module, const std::vector<torch::Tensor>& weights) {
    const auto parameters = module.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      // On a cache line, as pages are.
      auto* begin = reinterpret_cast<std::byte*>(
          (reinterpret_cast<std::uintptr_t>(buffers[i].data()) + 63) / 64 * 64);
      std::memcpy(begin, weights[i].data_ptr(), weights[i].nbytes());
      parameters[i].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
          at::DataPtr(begin, torch::kCPU));
    }
  };
  page_in(*first, first_weights);
  (void)outcome(*first);
  (void)outcome(*first);
  page_in(*second, second_weights);  // and `first` is evicted

  expect_equal(outcome(*second), expected);
}

INSTANTIATE_TEST_SUITE_P(OfEachOperator,
                         ReusedAddress,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 4),
                                            ::testing::Values(torch::kFloat, torch::kBFloat16),
                                            ::testing::Bool()));

}  // namespace
}  // namespace accel::reused_address_test

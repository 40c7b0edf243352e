// Who sees operators above autograd, in which order, and that a rewriting and a deferred construction are there at once.

#include "libaccel/interception/whole_operators.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <accel/big_model.h>

namespace accel::interception::whole_operators_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace nn = torch::nn;

// Notes the operators that come to it, and answers with answer(), when there is one.
class Notes final : public OperatorHandler {
 public:
  using Answer = std::function<at::Tensor(const std::vector<c10::IValue>& arguments)>;
  explicit Notes(Answer answer = {}) : answer_(std::move(answer)) {}

  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    names.push_back(op.operator_name().name);
    if (!answer_) return false;
    const at::Tensor answer = answer_(torch::jit::pop(*stack, op.schema().arguments().size()));
    torch::jit::push(*stack, answer);
    return true;
  }

  std::vector<std::string> names;

 private:
  Answer answer_;
};

nn::Sequential perceptron() {
  torch::manual_seed(3);
  return nn::Sequential(
      nn::Linear(6, 8), nn::GELU(), nn::Linear(nn::LinearOptions(8, 4).bias(false)));
}

void mark(const nn::Sequential& net) {
  for (const at::Tensor& parameter : net->parameters()) mark_for_rewriting(parameter);
}

// The product with the columns of a weight in two halves, as two ranks of tensor parallelism compute it.
at::Tensor in_halves(
    const std::function<at::Tensor(const at::Tensor& weight, std::int64_t half)>& product,
    const at::Tensor& weight) {
  const std::int64_t columns = weight.size(1) / 2;
  return at::cat(
      {product(weight.narrow(1, 0, columns), 0), product(weight.narrow(1, columns, columns), 1)},
      1);
}

class Halves final : public OperatorHandler {
 public:
  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    ++num_runs;
    const auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
    const bool has_bias = op.operator_name().name == "aten::addmm";
    const at::Tensor input = arguments[has_bias ? 1 : 0].toTensor();
    const at::Tensor weight = arguments[has_bias ? 2 : 1].toTensor();
    const std::int64_t columns = weight.size(1) / 2;
    torch::jit::push(
        *stack,
        in_halves(
            [&](const at::Tensor& half, std::int64_t index) {
              if (!has_bias) return at::mm(input, half);
              return at::addmm(
                  arguments[0].toTensor().narrow(0, index * columns, columns), input, half);
            },
            weight));
    return true;
  }
  int num_runs = 0;
};

const std::vector<std::string> kProducts = {"aten::mm", "aten::matmul", "aten::addmm"};

struct Gradients {
  at::Tensor loss;
  std::vector<at::Tensor> values;
};

Gradients train(nn::Sequential& net, const at::Tensor& input) {
  Gradients gradients{.loss = net->forward(input).square().sum(), .values = {}};
  gradients.loss.backward();
  for (const at::Tensor& parameter : net->parameters())
    gradients.values.push_back(parameter.grad());
  return gradients;
}

void expect_equal(const Gradients& one, const Gradients& other) {
  EXPECT_TRUE(one.loss.allclose(other.loss, 1e-6, 1e-6));
  ASSERT_EQ(one.values.size(), other.values.size());
  for (std::size_t i = 0; i < one.values.size(); ++i)
    EXPECT_TRUE(one.values[i].allclose(other.values[i], 1e-6, 1e-6)) << i;
}

TEST(WholeOperators, ARewritingSeesWholeOperatorsOnMarkedParametersAndNoOthers) {
  nn::Sequential net = perceptron();
  Notes notes;
  const Rewriting rewriting({"aten::t", "aten::matmul", "aten::addmm", "aten::mm"}, notes);

  const at::Tensor input = at::ones({5, 6});
  (void)net->forward(input);
  EXPECT_THAT(notes.names, IsEmpty()) << "nothing is marked";

  mark(net);
  net->forward(input).sum().backward();
  EXPECT_THAT(notes.names, ElementsAre("aten::t", "aten::addmm", "aten::t", "aten::matmul"))
      << "neither what matmul is made of, nor what the backward computes";
}

TEST(WholeOperators, ARewrittenModelHasTheGradientsOfTheModel) {
  nn::Sequential plain = perceptron();
  nn::Sequential net = perceptron();
  const at::Tensor input = at::randn({5, 6});
  const Gradients expected = train(plain, input);
  Halves halves;
  const Rewriting rewriting(kProducts, halves);
  mark(net);

  const Gradients found = train(net, input);

  EXPECT_EQ(halves.num_runs, 2);
  expect_equal(found, expected);
  for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.is_leaf());
}

TEST(WholeOperators, ARewritingWorksWithinADeferredConstruction) {
  nn::Sequential plain = perceptron();
  nn::Sequential net = perceptron();
  const at::Tensor input = at::randn({5, 6});
  const Gradients expected = train(plain, input);
  Halves halves;
  const Rewriting rewriting(kProducts, halves);
  mark(net);

  std::optional<EmptyWeights> scope(init_empty_weights());
  const nn::Linear before(1000, 1000);
  const Gradients found = train(net, input);
  const nn::Linear after(1000, 1000);
  (void)at::mm(after->weight, after->weight);  // not marked
  scope.reset();

  EXPECT_EQ(halves.num_runs, 2);
  expect_equal(found, expected);
  EXPECT_TRUE(before->weight.is_meta());
  EXPECT_TRUE(after->weight.is_meta());
}

// What a construction computes with a marked parameter is rewritten, put on the tape in its new form, and made real from there.
TEST(WholeOperators, WhatARewritingComputesIsDeferredWithTheConstruction) {
  const at::Tensor weight = at::randn({3, 4});
  mark_for_rewriting(weight);
  Notes twice([](const std::vector<c10::IValue>& arguments) {
    return at::mm(arguments[0].toTensor(), arguments[1].toTensor()) * at::ones({1}).add(1);
  });
  const Rewriting rewriting({"aten::mm"}, twice);

  std::optional<EmptyWeights> scope(init_empty_weights());
  const at::Tensor product = at::mm(at::ones({2, 3}), weight);
  EXPECT_TRUE(product.is_meta());
  scope.reset();

  EXPECT_THAT(twice.names, ElementsAre("aten::mm"));
  EXPECT_TRUE(product.allclose(weight.sum(0).mul(2).expand({2, 4})));
}

TEST(WholeOperators, TheLastRewritingIsAskedFirstAndWhatItCallsComesToThoseBehindIt) {
  const at::Tensor weight = at::ones({2, 2});
  mark_for_rewriting(weight);
  const auto plus = [](double more) {
    return [more](const std::vector<c10::IValue>& arguments) {
      return at::mm(arguments[0].toTensor(), arguments[1].toTensor()).mul(10).add(more);
    };
  };
  Notes inner(plus(1));
  Notes passes;
  Notes outer(plus(2));
  const Rewriting first({"aten::mm"}, inner);
  const Rewriting second({"aten::mm"}, passes);
  std::optional<Rewriting> third(std::in_place, std::vector<std::string>{"aten::mm"}, outer);

  const at::Tensor input = at::ones({2, 2});
  EXPECT_EQ(at::mm(input, weight)[0][0].item<float>(), (2 * 10 + 1) * 10 + 2);
  EXPECT_EQ(passes.names.size(), 1u);
  third.reset();
  EXPECT_EQ(at::mm(input, weight)[0][0].item<float>(), 2 * 10 + 1);
}

TEST(WholeOperators, AThreadsHandlerSeesItsThreadAloneAndTheInnerOneFirst) {
  Notes outer;
  Notes inner;
  const ThreadHandler scope(outer);
  {
    const ThreadHandler within(inner);
    (void)at::zeros({1});
    const NoHandlers none;
    (void)at::zeros({1});
  }
  std::thread([] { (void)at::zeros({1}); }).join();

  EXPECT_THAT(inner.names, ElementsAre("aten::zeros"));
  EXPECT_THAT(outer.names, IsEmpty());
  (void)at::ones({1});
  EXPECT_THAT(outer.names, ElementsAre("aten::ones"));
}

TEST(WholeOperators, AnUnknownOperatorIsRefused) {
  Notes notes;
  EXPECT_THROW(Rewriting({"aten::no_such_operator"}, notes), c10::Error);
}

}  // namespace
}  // namespace accel::interception::whole_operators_test

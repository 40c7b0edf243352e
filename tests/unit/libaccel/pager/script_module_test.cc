// TorchScript modules on pages, and the ways in which scripts reach parameters.

#include <functional>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <accel/error.h>

#include "libaccel/engine/pager/module_parameters.h"
#include "libaccel/engine/pager/pager.h"

namespace accel::pager::script_module_test {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

torch::jit::Module make_module() {
  torch::manual_seed(4);
  torch::jit::Module module("Net");
  module.register_parameter("w1", torch::randn({16, 32}) / 4, false);
  module.register_parameter("b1", torch::randn({32}), false);
  module.register_parameter("w2", torch::randn({32, 16}) / 4, false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(R"(
    def forward(self, x):
        for i in range(2):
            h = torch.tanh(torch.add(torch.matmul(x, self.w1), self.b1)) * 2.0 + 1.0
            x = x + torch.sigmoid(torch.matmul(h, self.w2)) * 0.5
        return x
  )");
  return module;
}

std::vector<Tensor> train(torch::jit::Module& module, const std::function<void()>& between) {
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : module.parameters())
    parameters.push_back(parameter.requires_grad_());
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1));
  torch::manual_seed(5);
  std::vector<Tensor> results;
  for (int step = 0; step < 5;
       ++step) {  // the profiling executor rewrites the graph after the first ones
    optimizer.zero_grad();
    between();
    const Tensor loss = module.forward({torch::randn({4, 16})}).toTensor().pow(2).mean();
    between();
    loss.backward();
    for (const Tensor& parameter : parameters) results.push_back(parameter.grad().clone());
    between();
    optimizer.step();
    results.push_back(loss.detach());
  }
  for (const Tensor& parameter : parameters) results.push_back(parameter.detach().clone());
  return results;
}

TEST(ScriptModule, TrainsAsInMemory) {
  auto plain = make_module();
  const auto expected = train(plain, [] {});
  auto paged = make_module();
  Pager pager(parameters_of(paged), {.unit_bytes = 64});

  const auto results = train(paged, [&] { pager.evict_all(); });

  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(torch::equal(results[i], expected[i])) << i;
  EXPECT_GT(pager.statistics().num_evictions, 10u);
}

TEST(ScriptModule, RunsFromTwoThreadsWhilePagesComeAndGo) {
  auto module = make_module();
  const Tensor input = torch::ones({4, 16});
  const torch::NoGradGuard no_grad;
  const Tensor expected = module.forward({input}).toTensor();
  Pager pager(parameters_of(module), {.max_live_bytes = 4 * 4096, .unit_bytes = 64});
  std::atomic<int> num_wrong{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad_here;
      for (int i = 0; i < 100; ++i) {
        if (!torch::equal(module.forward({input}).toTensor(), expected)) ++num_wrong;
        pager.evict_all();
      }
    });
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
}

// torch.jit.fork runs part of a graph on a thread of LibTorch's pool.
TEST(ScriptModule, ForkedPartsSeeTheParametersOnTheirThreads) {
  auto part = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%x : Tensor, %w : Tensor):
  %r : Tensor = aten::matmul(%x, %w)
  return (%r))IR",
                      part.get());
  auto graph = std::make_shared<torch::jit::Graph>();
  auto* x = graph->addInput("x");
  auto* w = graph->addInput("w");
  std::vector<torch::jit::Value*> forked;
  for (int i = 0; i < 4; ++i) {
    auto* fork = graph->insertNode(graph->create(c10::prim::fork, {x, w}, 1));
    fork->g_(c10::attr::Subgraph, part->copy());
    fork->output()->setType(c10::FutureType::create(c10::TensorType::get()));
    forked.push_back(fork->output());
  }
  for (auto* future : forked) graph->registerOutput(graph->insert(c10::aten::wait, {future}));
  torch::jit::GraphExecutor executor(graph, "forks");
  const torch::NoGradGuard no_grad;
  const Tensor weight = torch::randn({16, 16});
  const Tensor input = torch::randn({4, 16});
  const Tensor expected = input.matmul(weight);
  Pager pager({{"weight", weight}}, {});

  for (int round = 0; round < 20; ++round) {
    pager.evict_all();
    std::vector<c10::IValue> stack = {input, weight};
    executor.run(stack);
    ASSERT_EQ(stack.size(), 4u);
    for (const auto& result : stack) EXPECT_TRUE(torch::equal(result.toTensor(), expected));
  }
}

TEST(ScriptModule, BackwardRunsOnAnotherThread) {
  const Tensor weight = torch::randn({16, 16}).requires_grad_();
  const Tensor input = torch::randn({4, 16});
  input.matmul(weight).matmul(weight.t()).sum().backward();
  const Tensor expected = weight.grad().clone();
  weight.mutable_grad() = Tensor();
  Pager pager({{"weight", weight}}, {});
  const Tensor loss = input.matmul(weight).matmul(weight.t()).sum();
  pager.evict_all();

  std::jthread([&] { loss.backward(); }).join();

  EXPECT_TRUE(torch::equal(weight.grad(), expected));
}

TEST(ScriptModule, FusersAreSwitchedOffAndFrozenModulesAreRefusedByName) {
  torch::jit::setTensorExprFuserEnabled(true);
  auto module = make_module();
  EXPECT_EQ(parameters_of(module).size(), 3u);
  EXPECT_FALSE(torch::jit::tensorExprFuserEnabled());

  module.eval();
  const auto frozen = torch::jit::freeze(module);
  try {
    (void)parameters_of(frozen);
    FAIL() << "its parameters are constants";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), ::testing::AllOf(HasSubstr("Net"), HasSubstr("is frozen")));
  }
}

}  // namespace
}  // namespace accel::pager::script_module_test

// TorchScript modules as torch::nn ones: the tensors, names and modes of the script, and what is refused.

#include <sstream>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <accel/error.h>
#include <accel/script_module.h>

#include "tests/support/error_of.h"

namespace accel::script_module_test {
namespace {

using test::error_of;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

torch::jit::Module make_script(const char* result = "self.inner.forward(x) * self.scale") {
  torch::jit::Module inner("Inner");
  inner.register_parameter("weight", at::full({3, 3}, 2.0).requires_grad_(), false);
  inner.register_parameter("frozen", at::ones({3}), false);
  inner.register_attribute("training", c10::BoolType::get(), true);
  inner.define("def forward(self, x):\n    return torch.matmul(x, self.weight) + self.frozen\n");
  torch::jit::Module script("Net");
  script.register_buffer("scale", at::full({3}, 0.5));
  script.register_attribute("training", c10::BoolType::get(), true);
  script.register_module("inner", inner);
  script.define(std::string("def forward(self, x):\n    return ") + result + "\n");
  return script;
}

TEST(ScriptModule, HasTheTensorsOfTheScriptUnderItsNames) {
  const torch::jit::Module script = make_script();
  ScriptModule net(script);

  EXPECT_THAT(net->named_parameters().keys(), ElementsAre("inner.weight", "inner.frozen"));
  EXPECT_THAT(net->named_buffers().keys(), ElementsAre("scale"));
  const auto inner = script.attr("inner").toModule();
  EXPECT_TRUE(net->named_parameters()["inner.weight"].is_same(inner.attr("weight").toTensor()));
  EXPECT_TRUE(net->named_parameters()["inner.weight"].requires_grad());
  EXPECT_FALSE(net->named_parameters()["inner.frozen"].requires_grad());
}

TEST(ScriptModule, ComputesWhatTheScriptComputes) {
  ScriptModule net(make_script());
  const at::Tensor output = net(at::ones({2, 3}));
  EXPECT_TRUE(output.equal(at::full({2, 3}, 3.5)));
  output.sum().backward();
  EXPECT_TRUE(net->named_parameters()["inner.weight"].grad().equal(at::ones({3, 3})));
}

TEST(ScriptModule, TakesAScriptThatWasSavedAndLoaded) {
  std::stringstream file;
  make_script().save(file);
  ScriptModule net(torch::jit::load(file));
  EXPECT_THAT(net->named_parameters().keys(), ElementsAre("inner.weight", "inner.frozen"));
  EXPECT_TRUE(net(at::ones({2, 3})).equal(at::full({2, 3}, 3.5)));
}

TEST(ScriptModule, TrainingModeAndConversionsReachTheScript) {
  const torch::jit::Module script = make_script();
  ScriptModule net(script);
  EXPECT_TRUE(net->is_training());
  net->eval();
  EXPECT_FALSE(script.is_training());
  EXPECT_FALSE(script.attr("inner").toModule().is_training());
  net->to(at::kDouble);
  EXPECT_EQ(net(at::ones({2, 3}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST(ScriptModule, RefusesFrozenOnesByName) {
  torch::jit::Module script = make_script();
  script.eval();
  const Error error = error_of([&] { ScriptModule net(torch::jit::freeze(script)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("Net"), HasSubstr("is frozen")));
}

TEST(ScriptModule, NamesAnOutputThatIsNoTensor) {
  ScriptModule net(make_script("(x, x)"));
  const Error error = error_of([&] { net(at::ones({2, 3})); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'Net'"), HasSubstr("returned a Tuple")));
}

}  // namespace
}  // namespace accel::script_module_test

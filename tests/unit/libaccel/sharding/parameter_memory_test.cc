// Memory of parameters that others use when a model is divided: it would not follow the parameter any more.

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"

namespace accel::parameter_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A trained weight, and what `more` registers beside it.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const std::function<void(NetImpl&)>& more) {
    memory = at::ones({4, 4});
    weight = register_parameter("weight", memory.narrow(0, 0, 2).detach());
    more(*this);
    memory.reset();
  }
  at::Tensor forward(const at::Tensor& input) { return input.matmul(weight.t()); }
  using torch::nn::Module::register_buffer;
  using torch::nn::Module::register_parameter;
  at::Tensor memory;
  at::Tensor weight;
};

std::string refusal_of(const std::function<void(NetImpl&)>& more) {
  Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
  try {
    std::ignore = accelerator.prepare(std::make_shared<NetImpl>(more));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.remedy(), HasSubstr("clone()"));
    return error.message();
  }
  return "";
}

TEST(ParameterMemory, BuffersAndFrozenParametersOfATrainedOneAreRefusedByName) {
  test::run_ranks(2, [] {
    EXPECT_THAT(
        refusal_of([](NetImpl& net) { net.register_buffer("mirror", net.weight.detach()); }),
        StartsWith("the buffer mirror is another tensor of the memory of the parameter weight"));
    EXPECT_THAT(
        refusal_of([](NetImpl& net) { net.register_parameter("old", net.weight.detach(), false); }),
        StartsWith("the parameter old is another tensor of the memory of the parameter weight"));
    EXPECT_THAT(refusal_of([](NetImpl& net) {
                  net.register_buffer("column", net.weight.detach().select(1, 0));
                }),
                StartsWith("the buffer column is another tensor"));
    // Beside it.
    EXPECT_THAT(
        refusal_of([](NetImpl& net) { net.register_buffer("rest", net.memory.narrow(0, 2, 2)); }),
        IsEmpty());
    EXPECT_THAT(
        refusal_of([](NetImpl& net) { net.register_buffer("own", net.weight.detach().clone()); }),
        IsEmpty());
  });
}

// What prepare() says while somebody holds what `make` returns.
std::string said_while_held(const std::function<at::Tensor(torch::nn::Linear&)>& make) {
  Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
  torch::nn::Linear net(4, 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const at::Tensor held = make(net);
  ::testing::internal::CaptureStderr();
  const auto prepared = accelerator.prepare(net, sgd);
  const std::string said = ::testing::internal::GetCapturedStderr();
  accelerator.wait_for_everyone();
  return said;
}

void expect_views_told() {
  EXPECT_THAT(said_while_held([](auto& net) { return net->weight; }), IsEmpty());
  const std::string said = said_while_held([](auto& net) { return net->bias.detach(); });
  if (test::rank_of_this_process() == 0) {
    EXPECT_THAT(said,
                HasSubstr("the memory of the parameter bias is also used outside of the model"
                          " (views and detach(): 1)"));
  }
}

TEST(ParameterMemory, ViewsOfTheUsersAreTold) {
  test::run_ranks(2, expect_views_told);
}

TEST(ParameterMemory, ViewsOfTheUsersAreToldOverNodes) {
  test::run_ranks(2, [] {
    const std::string node = "node" + std::to_string(test::rank_of_this_process());
    ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
    expect_views_told();
  });
}

}  // namespace
}  // namespace accel::parameter_memory_test

// Parts of a forward that are computed again: gradients equal to the bit, what lives meanwhile, and what is refused.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

#include <accel/activation_checkpoint.h>
#include <accel/error.h>

#include "libaccel/interception/whole_operators.h"
#include "tests/support/error_of.h"

namespace accel::activation_checkpoint_test {
namespace {

namespace nn = torch::nn;
using test::error_of;
using ::testing::HasSubstr;

// Runs a block of layers as one part, or as it is.
enum class Mode { kWhole, kInParts };

nn::Sequential block() {
  return nn::Sequential(nn::Linear(8, 16),
                        nn::LayerNorm(nn::LayerNormOptions({16})),
                        nn::GELU(),
                        nn::Dropout(0.3),
                        nn::Linear(16, 8),
                        nn::Tanh());
}

std::vector<nn::Sequential> blocks(int count = 3) {
  torch::manual_seed(3);
  std::vector<nn::Sequential> made;
  for (int i = 0; i < count; ++i) made.push_back(block());
  return made;
}

at::Tensor forward(nn::Sequential net, const at::Tensor& input, Mode run) {
  if (run == Mode::kWhole) return net->forward(input);
  return checkpoint_activations([net](const at::Tensor& x) mutable { return net->forward(x); },
                                input);
}

std::vector<at::Tensor> gradients(const std::vector<nn::Sequential>& nets) {
  std::vector<at::Tensor> all;
  for (const nn::Sequential& net : nets) {
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.grad().clone());
  }
  return all;
}

// Two steps, with the gradient of the input last.
std::vector<at::Tensor> trained(
    Mode run, const std::function<void()>& between = [] {}) {
  auto nets = blocks();
  const at::Tensor input = at::randn({5, 8}).requires_grad_();
  for (int step = 0; step < 2; ++step) {
    at::Tensor x = input;
    for (const nn::Sequential& net : nets) x = forward(net, x, run);
    between();
    x.square().sum().backward();
  }
  std::vector<at::Tensor> all = gradients(nets);
  all.push_back(input.grad());
  all.push_back(at::rand({4}));
  return all;
}

void expect_equal(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << i;
}

TEST(ActivationCheckpoint, GivesTheSameGradientsWithDropoutToTheBit) {
  expect_equal(trained(Mode::kInParts), trained(Mode::kWhole));
}

TEST(ActivationCheckpoint, PutsTheGeneratorBackBehindThePart) {
  const auto draw = [] { (void)at::rand({7}); };

  // The last of them are drawn behind the backwards, in which dropout has drawn again.
  expect_equal(trained(Mode::kInParts, draw), trained(Mode::kWhole, draw));
}

class Bfloat16 {
 public:
  Bfloat16() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~Bfloat16() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Bfloat16(const Bfloat16&) = delete;
  Bfloat16& operator=(const Bfloat16&) = delete;
};

TEST(ActivationCheckpoint, RunsThePartAgainUnderItsAutocast) {
  const auto run = [](Mode run) {
    auto nets = blocks();
    const at::Tensor input = at::randn({5, 8});
    at::Tensor x = input;
    {
      const Bfloat16 autocast;
      for (const nn::Sequential& net : nets) x = forward(net, x, run);
    }
    EXPECT_EQ(x.scalar_type(), at::kBFloat16);
    x.to(at::kFloat).square().sum().backward();
    return gradients(nets);
  };

  expect_equal(run(Mode::kInParts), run(Mode::kWhole));
}

TEST(ActivationCheckpoint, UpdatesRunningStatisticsOnce) {
  const auto run = [](Mode run) {
    torch::manual_seed(4);
    nn::Sequential net(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::ReLU(), nn::Linear(6, 2));
    for (int step = 0; step < 3; ++step)
      forward(net, at::randn({5, 6}), run).square().sum().backward();
    std::vector<at::Tensor> all = gradients({net});
    for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer);
    return all;
  };

  const auto parts = run(Mode::kInParts);
  expect_equal(parts, run(Mode::kWhole));
  EXPECT_EQ(parts.back().item<std::int64_t>(), 3) << "num_batches_tracked";
}

TEST(ActivationCheckpoint, RunsAgainOnTheValuesThatTheForwardBeganWith) {
  const auto run = [](Mode run) {
    const at::Tensor weight = at::ones({3}).requires_grad_();
    const at::Tensor state = at::ones({3});
    const auto part = [state](const at::Tensor& x) {
      const at::Tensor own = state;
      own.mul_(2);
      own.slice(0, 0, 1).add_(1);
      const at::Tensor factor = own.clone();
      return (x * factor).exp();
    };
    for (int step = 0; step < 2; ++step) {
      const at::Tensor y =
          run == Mode::kWhole ? part(weight) : checkpoint_activations(part, weight);
      y.sum().backward();
    }
    return std::vector<at::Tensor>{weight.grad(), state};
  };

  expect_equal(run(Mode::kInParts), run(Mode::kWhole));
}

TEST(ActivationCheckpoint, PartsLieInOneAnother) {
  const auto run = [](Mode run) {
    auto nets = blocks();
    const at::Tensor input = at::randn({5, 8});
    const auto inner = [&](at::Tensor x) {
      for (const nn::Sequential& net : nets) x = forward(net, x, run);
      return x;
    };
    const auto middle = [&](const at::Tensor& x) {
      return run == Mode::kWhole ? inner(x) : checkpoint_activations(inner, x * 2).sin();
    };
    const auto whole = [&](const at::Tensor& x) { return inner(x * 2).sin(); };
    const at::Tensor y = run == Mode::kWhole ? whole(input) : checkpoint_activations(middle, input);
    y.square().sum().backward();
    return gradients(nets);
  };

  expect_equal(run(Mode::kInParts), run(Mode::kWhole));
}

TEST(ActivationCheckpoint, AGraphThatIsRetainedIsComputedAgainForEachBackward) {
  int num_runs = 0;
  const at::Tensor weight = at::randn({4}).requires_grad_();
  const at::Tensor y = checkpoint_activations(
      [&num_runs](const at::Tensor& x) {
        ++num_runs;
        return x.exp().sin();
      },
      weight);
  y.sum().backward({}, /*retain_graph=*/true);
  y.sum().backward();

  EXPECT_EQ(num_runs, 3);
  const at::Tensor plain = weight.detach().clone().requires_grad_();
  const at::Tensor z = plain.exp().sin();
  z.sum().backward({}, /*retain_graph=*/true);
  z.sum().backward();
  EXPECT_TRUE(weight.grad().equal(plain.grad()));
}

TEST(ActivationCheckpoint, GivesSecondDerivatives) {
  const auto run = [](Mode run) {
    torch::manual_seed(5);
    const at::Tensor x = at::randn({4}).requires_grad_();
    const auto part = [](const at::Tensor& t) { return t.exp().sin(); };
    const at::Tensor y = run == Mode::kWhole ? part(x) : checkpoint_activations(part, x);
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true);
    first[0].square().sum().backward();
    return std::vector<at::Tensor>{first[0].detach(), x.grad()};
  };

  expect_equal(run(Mode::kInParts), run(Mode::kWhole));
}

TEST(ActivationCheckpoint, StopsAtTheLastTensorThatIsNeeded) {
  int num_ends = 0;
  const at::Tensor weight = at::randn({4}).requires_grad_();
  checkpoint_activations(
      [&num_ends](const at::Tensor& x) {
        const at::Tensor y = x.exp() + 1;
        ++num_ends;
        return y;
      },
      weight)
      .sum()
      .backward();

  EXPECT_EQ(num_ends, 1) << "of the forward alone";
}

// The memory of what is computed in a part, as far as somebody holds it.
class Memory {
 public:
  at::Tensor add(const at::Tensor& tensor) {
    storages_.push_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& storage : storages_) {
      if (const auto held = storage.lock()) sum += static_cast<std::int64_t>(held->nbytes());
    }
    return sum;
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

TEST(ActivationCheckpoint, ActivationsAreNotKept) {
  const auto run = [](Mode run) {
    Memory memory;
    std::vector<std::int64_t> held;
    const at::Tensor input = at::randn({100}).requires_grad_();
    const auto part = [&memory, &held](const at::Tensor& x) {
      at::Tensor y = x;
      for (int i = 0; i < 4; ++i) y = memory.add(y.sin());
      held.push_back(memory.bytes());
      return y;
    };
    at::Tensor y = run == Mode::kWhole
                       ? part(part(input))
                       : checkpoint_activations(part, checkpoint_activations(part, input));
    held.push_back(memory.bytes());
    y.sum().backward();
    y.reset();
    EXPECT_EQ(memory.bytes(), 0) << "behind the backward";
    return held;
  };

  // sin() saves its input: 3 of the first part, its output and 3 of the second part, and the result.
  EXPECT_EQ(run(Mode::kWhole), (std::vector<std::int64_t>{4 * 400, 8 * 400, 8 * 400}));
  // What the parts begin with, and the result. Where a part ends, nothing of it is held but the output: in the backward they
  // stop before that.
  EXPECT_EQ(run(Mode::kInParts), (std::vector<std::int64_t>{1 * 400 + 0, 2 * 400, 2 * 400}));
}

TEST(ActivationCheckpoint, SlotsThatNobodyUsesGoAtTheEndOfTheBackward) {
  Memory memory;
  const at::Tensor one = at::randn({100}).requires_grad_();
  const at::Tensor other = at::randn({100}).requires_grad_();
  const auto [a, b] = checkpoint_activations(
      [&memory](const at::Tensor& x, const at::Tensor& y) {
        return std::tuple(memory.add(x.exp()).sin(), memory.add(y.exp()).sin());
      },
      one,
      other);
  b.sum().backward({}, /*retain_graph=*/true);

  EXPECT_EQ(memory.bytes(), 0);
  a.sum().backward();
  EXPECT_TRUE(one.grad().defined());
}

TEST(ActivationCheckpoint, TakesNestedInputsAndOthers) {
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor undefined;
  const auto result = checkpoint_activations(
      [](const std::vector<at::Tensor>& list, double factor, const at::Tensor& none) {
        EXPECT_FALSE(none.defined());
        return std::vector<at::Tensor>{(list.at(0) * list.at(1)).sin() * factor};
      },
      std::vector<at::Tensor>{x, at::ones({4}) * 3},
      2.0,
      undefined);
  result.at(0).sum().backward();

  const at::Tensor plain = x.detach().clone().requires_grad_();
  ((plain * (at::ones({4}) * 3)).sin() * 2.0).sum().backward();
  EXPECT_TRUE(x.grad().equal(plain.grad()));
}

TEST(ActivationCheckpoint, RunsOnceWithoutAGraph) {
  const at::NoGradGuard no_grad;
  int num_runs = 0;
  (void)checkpoint_activations(
      [&num_runs](const at::Tensor& x) {
        ++num_runs;
        return x.exp();
      },
      at::ones({2}).requires_grad_());
  EXPECT_EQ(num_runs, 1);
}

TEST(ActivationCheckpoint, OfAnLstmIsEqualToTheBit) {
  const auto run = [](Mode run) {
    torch::manual_seed(6);
    nn::LSTM net(nn::LSTMOptions(4, 5).num_layers(2).dropout(0.2));
    const at::Tensor input = at::randn({3, 2, 4});
    auto part = [net](const at::Tensor& x) mutable { return std::get<0>(net->forward(x)); };
    const at::Tensor y = run == Mode::kWhole ? part(input) : checkpoint_activations(part, input);
    y.square().sum().backward();
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.grad());
    return all;
  };

  expect_equal(run(Mode::kInParts), run(Mode::kWhole));
}

// Products with a marked weight are twice as large, as an answer in their place.
class Twice final : public interception::OperatorHandler {
 public:
  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    ++num_runs;
    op.callBoxed(stack);
    const at::Tensor product = torch::jit::pop(*stack).toTensor();
    torch::jit::push(*stack, product * 2);
    return true;
  }
  int num_runs = 0;
};

TEST(ActivationCheckpoint, OperatorsAreRewrittenInTheBackwardToo) {
  const auto run = [](Mode run) {
    torch::manual_seed(7);
    Twice twice;
    const interception::Rewriting rewriting({"aten::addmm"}, twice);
    nn::Linear net(4, 4);
    interception::mark_for_rewriting(net->weight);
    const auto part = [&net](const at::Tensor& x) { return net->forward(x).exp().sin(); };
    const at::Tensor input = at::randn({3, 4});
    const at::Tensor y = run == Mode::kWhole ? part(input) : checkpoint_activations(part, input);
    y.sum().backward();
    EXPECT_EQ(twice.num_runs, run == Mode::kWhole ? 1 : 2);
    return std::vector<at::Tensor>{net->weight.grad()};
  };

  expect_equal(run(Mode::kInParts), run(Mode::kWhole));
}

// ---- docs/guides/activations.md ----

struct PageBlock : nn::Module {
  PageBlock() : linear(register_module("linear", nn::Linear(4, 4))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    ++num_runs;
    return linear->forward(x).tanh();
  }
  nn::Linear linear;
  int num_runs = 0;
};

struct PageNet : nn::Module {
  PageNet() : head(register_module("head", nn::Linear(4, 2))) {
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<PageBlock>()));
  }
  // clang-format off
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : blocks)
      x = accel::checkpoint_activations([block](const torch::Tensor& h) { return block->forward(h); }, x);
    return head->forward(x);
  }
  // clang-format on
  std::vector<std::shared_ptr<PageBlock>> blocks;
  nn::Linear head;
};

TEST(ActivationCheckpoint, BlocksOfTheGuideRunAgain) {
  PageNet net;
  net.forward(at::randn({3, 4})).sum().backward();

  for (const auto& block : net.blocks) {
    EXPECT_EQ(block->num_runs, 2);
    EXPECT_TRUE(block->linear->weight.grad().defined());
  }
}

TEST(ActivationCheckpoint, OperatorsOfTheGuideAreKept) {
  int num_runs = 0;
  const auto function = [&num_runs](const torch::Tensor& h) {
    ++num_runs;
    return h.mm(h).tanh();
  };
  const torch::Tensor input = at::randn({3, 3}).requires_grad_();
  torch::Tensor x = input;
  // clang-format off
  x = accel::checkpoint_activations({.keep = accel::KeptOperators::compute_intensive()}, function, x);

  static const accel::KeptOperators products({"aten::mm", "aten::addmm", "aten::max.dim"});
  x = accel::checkpoint_activations({.keep = products}, function, x);
  // clang-format on
  x.sum().backward();

  EXPECT_EQ(num_runs, 4);
  const at::Tensor plain = input.detach().clone().requires_grad_();
  const at::Tensor once = plain.mm(plain).tanh();
  once.mm(once).tanh().sum().backward();
  EXPECT_TRUE(input.grad().equal(plain.grad()));
}

// ---- refusals ----

TEST(ActivationCheckpointRefuses, ARegionThatSavesAnotherShape) {
  std::int64_t size = 4;
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor y = checkpoint_activations(
      [&size](const at::Tensor& t) { return t.slice(0, 0, size).exp().sum(); }, x);
  size = 3;

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
  EXPECT_THAT(error.message(), HasSubstr("number 0 was [4] Float on cpu, and is [3] Float on cpu"));
  EXPECT_THAT(error.remedy(), HasSubstr("do the same each time"));
}

TEST(ActivationCheckpointRefuses, ARegionThatSavesAnotherType) {
  at::ScalarType type = at::kFloat;
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor y =
      checkpoint_activations([&type](const at::Tensor& t) { return t.to(type).exp().sum(); }, x);
  type = at::kDouble;

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_THAT(error.message(), HasSubstr("was [4] Float on cpu, and is [4] Double on cpu"));
}

TEST(ActivationCheckpointRefuses, ARegionThatSavesLess) {
  bool is_first = true;
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor y = checkpoint_activations(
      [&is_first](const at::Tensor& t) {
        const at::Tensor once = t.exp();
        return std::exchange(is_first, false) ? once.sin().sum() : once.sum();
      },
      x);

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
  EXPECT_THAT(error.message(), HasSubstr("saved 2 tensors in forward, and 1 when it ran again"));
}

TEST(ActivationCheckpointRefuses, AnInputThatWasChangedInPlace) {
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor input = x * 2;
  const at::Tensor y =
      checkpoint_activations([](const at::Tensor& t) { return t.exp().sum(); }, input);
  input.add_(1);

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("input 0"));
  EXPECT_THAT(error.message(), HasSubstr("it was at version 0, and is at version 1"));
}

TEST(ActivationCheckpointRefuses, AWeightThatWasChangedInPlace) {
  nn::Linear net(4, 4);
  const at::Tensor y =
      checkpoint_activations([net](const at::Tensor& t) mutable { return net->forward(t).sum(); },
                             at::randn({2, 4}).requires_grad_());
  {
    const at::NoGradGuard no_grad;
    net->weight.mul_(2);
  }

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("[4, 4] Float on cpu"));
  EXPECT_THAT(error.message(), HasSubstr("was changed in place since"));
}

TEST(ActivationCheckpointRefuses, WhatIsChangedInPlaceAfterItWasSaved) {
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor y = checkpoint_activations(
      [](const at::Tensor& t) {
        at::Tensor once = t.exp();
        once.mul_(2);
        return once.sin().sum();
      },
      x);

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("number 0"));
  EXPECT_THAT(error.remedy(), HasSubstr("add() for add_()"));
}

}  // namespace
}  // namespace accel::activation_checkpoint_test

// Forwards of unmodified models whose units are recorded and computed again: gradients equal to the bit, and what is held.

#include "libaccel/engine/recompute/unit_forward.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <accel/activation_checkpoint.h>
#include <accel/error.h>

#include "tests/support/error_of.h"

namespace accel::recompute::unit_forward_test {
namespace {

namespace nn = torch::nn;
using test::error_of;
using ::testing::HasSubstr;

// The body of a block, after its first layer.
using Body = std::function<at::Tensor(const at::Tensor& input, const at::Tensor& hidden)>;

at::Tensor plain_body(const at::Tensor&, const at::Tensor& hidden) {
  return hidden.tanh().exp().sin();
}

struct Block : nn::Module {
  explicit Block(Body code)
      : first(register_module("first", nn::Linear(6, 6))),
        last(register_module("last", nn::Linear(6, 6))),
        body(std::move(code)) {}
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(body(x, first->forward(x))).sigmoid();
  }
  nn::Linear first;
  nn::Linear last;
  Body body;
};

struct Net : nn::Module {
  explicit Net(const Body& code = plain_body, int count = 3)
      : head(register_module("head", nn::Linear(6, 2))) {
    for (int i = 0; i < count; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>(code)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
  std::vector<std::shared_ptr<Block>> blocks;
  nn::Linear head;
};

// Children are units, but for the last one.
std::shared_ptr<const UnitOfParameter> units_of(const nn::Module& net) {
  auto units = std::make_shared<UnitOfParameter>();
  for (const at::Tensor& parameter : net.parameters())
    units->emplace(parameter.unsafeGetTensorImpl(), kNoUnit);
  int next = 0;
  for (const auto& child : net.children()) {
    if (child->as<nn::Linear>() != nullptr) continue;
    for (const at::Tensor& parameter : child->parameters())
      (*units)[parameter.unsafeGetTensorImpl()] = next;
    ++next;
  }
  return units;
}

enum class Activations { kKept, kRecomputed };

template <typename Model>
at::Tensor output_of(Model& net, const at::Tensor& input, Activations activations) {
  std::optional<UnitForward> forward;
  if (activations == Activations::kRecomputed) forward.emplace(units_of(net), Comparison::kValues);
  return net.forward(input);
}

// Gradients and buffers after two steps, and numbers drawn behind them.
template <typename Model>
std::vector<at::Tensor> stepped(Model& net, Activations activations) {
  const at::Tensor input = at::randn({5, 6}).requires_grad_();
  for (int step = 0; step < 2; ++step)
    output_of(net, input * (step + 1), activations).square().sum().backward();
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net.parameters()) all.push_back(parameter.grad());
  for (const at::Tensor& buffer : net.buffers()) all.push_back(buffer);
  all.push_back(input.grad());
  all.push_back(at::rand({4}));
  return all;
}

template <typename Make>
void expect_same_bits(const Make& make) {
  const auto run = [&make](Activations activations) {
    torch::manual_seed(3);
    const auto net = make();
    return stepped(*net, activations);
  };
  const std::vector<at::Tensor> kept = run(Activations::kKept);
  const std::vector<at::Tensor> recomputed = run(Activations::kRecomputed);
  ASSERT_EQ(kept.size(), recomputed.size());
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(recomputed[i])) << i;
}

void expect_same_bits_with(const Body& body) {
  expect_same_bits([&body] { return std::make_shared<Net>(body); });
}

TEST(UnitForward, GivesTheSameGradientsToTheBit) {
  expect_same_bits_with(plain_body);
}

TEST(UnitForward, DrawsTheSameNumbersAgain) {
  nn::Dropout dropout(0.4);
  expect_same_bits_with([&dropout](const at::Tensor&, const at::Tensor& hidden) {
    return dropout->forward(hidden.tanh()) * at::rand_like(hidden) + at::rand({6});
  });
}

TEST(UnitForward, UpdatesRunningStatisticsOnce) {
  struct Normed : nn::Module {
    Normed()
        : linear(register_module("linear", nn::Linear(6, 6))),
          norm(register_module("norm", nn::BatchNorm1d(6))) {}
    at::Tensor forward(const at::Tensor& x) { return norm->forward(linear->forward(x)).relu(); }
    nn::Linear linear;
    nn::BatchNorm1d norm;
  };
  struct NormedNet : nn::Module {
    NormedNet()
        : one(register_module("one", std::make_shared<Normed>())),
          two(register_module("two", std::make_shared<Normed>())),
          head(register_module("head", nn::Linear(6, 2))) {}
    at::Tensor forward(const at::Tensor& x) { return head->forward(two->forward(one->forward(x))); }
    std::shared_ptr<Normed> one;
    std::shared_ptr<Normed> two;
    nn::Linear head;
  };
  expect_same_bits([] { return std::make_shared<NormedNet>(); });
}

struct EncoderNet : nn::Module {
  EncoderNet() : head(register_module("head", nn::Linear(8, 2))) {
    for (int i = 0; i < 2; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          nn::TransformerEncoderLayer(
              nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.2))));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = at::cat({x, x.slice(1, 0, 2)}, 1).view({5, 1, 8});
    for (auto& layer : layers) hidden = layer->forward(hidden);
    return head->forward(hidden);
  }
  std::vector<nn::TransformerEncoderLayer> layers;
  nn::Linear head;
};

TEST(UnitForward, OfATransformerGivesTheSameGradients) {
  expect_same_bits([] { return std::make_shared<EncoderNet>(); });
}

TEST(UnitForward, OfLstmsGivesTheSameGradients) {
  struct RecurrentNet : nn::Module {
    RecurrentNet()
        : one(register_module("one", nn::LSTM(nn::LSTMOptions(6, 6).num_layers(2).dropout(0.3)))),
          two(register_module("two", nn::LSTM(nn::LSTMOptions(6, 6)))),
          head(register_module("head", nn::Linear(6, 2))) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor sequence = x.unsqueeze(1);
      return head->forward(std::get<0>(two->forward(std::get<0>(one->forward(sequence)))));
    }
    nn::LSTM one;
    nn::LSTM two;
    nn::Linear head;
  };
  expect_same_bits([] { return std::make_shared<RecurrentNet>(); });
}

TEST(UnitForward, RunsOperatorsAgainUnderTheirAutocast) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor product = hidden.mm(hidden.t().tanh());
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(product.scalar_type(), at::kBFloat16);
    return hidden * product.to(at::kFloat).mean();
  });
}

TEST(UnitForward, OperatorsWithoutAGraphStayWithout) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    at::Tensor scale;
    {
      const at::NoGradGuard no_grad;
      scale = hidden.exp().mean();
    }
    return hidden.sin() * scale;
  });
}

TEST(UnitForward, WritesInPlaceAreMadeInTheirOrder) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    at::Tensor own = hidden.clone();
    own.add_(1).mul_(hidden.tanh());
    own.select(1, 2).add_(3);
    at::Tensor rows = at::zeros({5, 6});
    rows.slice(0, 0, 2).copy_(own.slice(0, 2, 4));
    return own.relu_().add(rows).sin();
  });
}

TEST(UnitForward, WritesInPlaceToTheInputOfAUnitAreKept) {
  // The input of a block is the output of the one before, which is no leaf.
  struct Residual : nn::Module {
    Residual() : linear(register_module("linear", nn::Linear(6, 6))) {}
    at::Tensor forward(at::Tensor x) {
      const at::Tensor change = linear->forward(x.clone()).tanh();
      x += change * 2;
      return x;
    }
    nn::Linear linear;
  };
  struct ResidualNet : nn::Module {
    ResidualNet()
        : one(register_module("one", std::make_shared<Residual>())),
          two(register_module("two", std::make_shared<Residual>())),
          head(register_module("head", nn::Linear(6, 2))) {}
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor hidden = two->forward(one->forward(x + 1));
      hidden.mul_(0.5);  // the part of the second block holds it
      return head->forward(hidden.clone());
    }
    std::shared_ptr<Residual> one;
    std::shared_ptr<Residual> two;
    nn::Linear head;
  };
  expect_same_bits([] { return std::make_shared<ResidualNet>(); });
}

TEST(UnitForward, WritesBehindAPartToWhatItHoldsAreKept) {
  struct WritingNet : nn::Module {
    WritingNet()
        : one(register_module("one", std::make_shared<Block>(plain_body))),
          head(register_module("head", nn::Linear(6, 2))) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor scale = at::ones({6});
      one->body = [&scale](const at::Tensor&, const at::Tensor& hidden) {
        return (hidden + scale).sin();  // nothing is saved of scale
      };
      const at::Tensor hidden = one->forward(x);
      const at::Tensor result = head->forward(hidden);
      scale.add_(5);
      return result;
    }
    std::shared_ptr<Block> one;
    nn::Linear head;
  };
  expect_same_bits([] { return std::make_shared<WritingNet>(); });
}

TEST(UnitForward, TensorsThatCodeFillsByAddressAreKept) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    const at::Tensor mask = at::empty({6});
    const at::Tensor other = at::zeros({6});
    for (int i = 0; i < 6; ++i) {
      mask.data_ptr<float>()[i] = static_cast<float>(i % 2);
      other.data_ptr<float>()[i] = static_cast<float>(i);
    }
    return (hidden * mask + other).sin();
  });
}

TEST(UnitForward, APartEndsAtATensorThatNoOperatorHasMade) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    const at::Tensor once = hidden.exp();
    const at::Tensor data = once.data();  // no operator, the same memory
    const at::Tensor factor = data * 2;
    {
      const at::NoGradGuard no_grad;
      data.add_(1);
    }
    return hidden.sin() * factor * data.clone();
  });
}

struct Cubed : torch::autograd::Function<Cubed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor square = x * x;
    context->save_for_backward({x, square});
    return square * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1] * 3};
  }
};

TEST(UnitForward, FunctionsOfTheProgramKeepTheirTensors) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    return Cubed::apply(hidden.tanh()).sin();
  });
}

TEST(UnitForward, PartsOfTheProgramLieInUnits) {
  expect_same_bits_with([](const at::Tensor&, const at::Tensor& hidden) {
    return checkpoint_activations(
               [](const at::Tensor& x) { return x.tanh().exp() * at::rand_like(x); }, hidden)
        .sin();
  });
}

TEST(UnitForward, AGraphThatIsRetainedIsGoneThroughAgain) {
  const auto run = [](Activations activations) {
    torch::manual_seed(3);
    Net net;
    const at::Tensor loss = output_of(net, at::randn({5, 6}), activations).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return net.blocks[0]->first->weight.grad();
  };
  EXPECT_TRUE(run(Activations::kKept).equal(run(Activations::kRecomputed)));
}

// ---- memory ----

TEST(UnitForward, ActivationsAreNotKept) {
  const auto run = [](Activations activations) {
    torch::manual_seed(3);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
    Net net([&storages](const at::Tensor&, const at::Tensor& hidden) {
      at::Tensor x = hidden;
      for (int i = 0; i < 5; ++i) {
        x = x.sin();
        storages.push_back(x.storage().getWeakStorageImpl());
      }
      return x;
    });
    const auto num_held = [&storages] {
      return std::count_if(storages.begin(), storages.end(), [](const auto& storage) {
        return storage.lock() != nullptr;
      });
    };
    const at::Tensor loss = output_of(net, at::randn({5, 6}), activations).sum();
    const auto held = num_held();
    loss.backward();
    EXPECT_EQ(storages.size(), 15) << "the code of the block runs in the forward alone";
    return held;
  };

  EXPECT_EQ(run(Activations::kKept), 15);
  EXPECT_EQ(run(Activations::kRecomputed), 0);
}

TEST(UnitForward, WhatAPartHoldsGoesWithItsGraph) {
  Net net;
  at::Tensor input = at::randn({5, 6}) + 1;
  const auto memory = input.storage().getWeakStorageImpl();
  at::Tensor loss = output_of(net, input, Activations::kRecomputed).sum();
  input.reset();
  EXPECT_NE(memory.lock(), nullptr);
  loss.backward();

  EXPECT_EQ(memory.lock(), nullptr);
}

// ---- refusals ----

TEST(UnitForwardRefuses, AWeightThatWasChangedInPlace) {
  Net net;
  const at::Tensor loss = output_of(net, at::randn({5, 6}), Activations::kRecomputed).sum();
  {
    const at::NoGradGuard no_grad;
    net.blocks[0]->first->bias.add_(1);  // autograd has not saved it
  }

  const Error error = error_of([&loss] { loss.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("was changed in place since its forward"));
}

TEST(UnitForwardRefuses, ValuesThatCodeHasChangedByTheirAddresses) {
  Net net([](const at::Tensor&, const at::Tensor& hidden) {
    const at::Tensor once = hidden.exp();
    once.data_ptr<float>()[3] = 7;
    return once.sin();
  });
  const at::Tensor loss = output_of(net, at::randn({5, 6}), Activations::kRecomputed).sum();

  const Error error = error_of([&loss] { loss.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("has other values when it is computed again"));
  EXPECT_THAT(error.remedy(), HasSubstr("in place of data_ptr()"));
}

}  // namespace
}  // namespace accel::recompute::unit_forward_test

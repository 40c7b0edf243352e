// Parts that keep the results of some operators: these run once, the others again; gradients are equal to the bit, and what lives
// meanwhile lies between a part that keeps nothing and no part.

#include "libaccel/engine/recompute/kept_results.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <accel/activation_checkpoint.h>
#include <accel/error.h>

#include "libaccel/engine/recompute/unit_forward.h"
#include "libaccel/interception/kernel_scope.h"
#include "libaccel/interception/stack_tensors.h"
#include "tests/support/error_of.h"

namespace accel::recompute::kept_results_test {
namespace {

namespace nn = torch::nn;
using test::error_of;
using ::testing::HasSubstr;

enum class Mode { kNoPart, kPart, kSelective };

template <typename Part, typename... Inputs>
auto run_as(Mode mode, Part part, const Inputs&... inputs) {
  if (mode == Mode::kNoPart) return part(inputs...);
  if (mode == Mode::kPart) return checkpoint_activations(part, inputs...);
  return checkpoint_activations({.keep = KeptOperators::compute_intensive()}, part, inputs...);
}

// How often kernels run on this thread, and what of their results lives.
class Kernels final : public interception::KernelHandler {
 public:
  Kernels() : scope_(*this) {}
  bool run(const c10::OperatorHandle& op,
           c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override {
    ++num_runs_[op.operator_name().name];
    interception::run_kernel(op, keys, stack);
    interception::for_each_tensor(torch::jit::last(*stack, op.schema().returns().size()),
                                  [this](const auto&, const at::Tensor& tensor) {
                                    if (!tensor.has_storage()) return;
                                    storages_.emplace(tensor.storage().unsafeGetStorageImpl(),
                                                      tensor.storage().getWeakStorageImpl());
                                  });
    return true;
  }
  [[nodiscard]] int num_runs(const std::string& name) const {
    const auto found = num_runs_.find(name);
    return found == num_runs_.end() ? 0 : found->second;
  }
  [[nodiscard]] std::int64_t live_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& storage : storages_) {
      if (const auto held = storage.second.lock())
        bytes += static_cast<std::int64_t>(held->nbytes());
    }
    return bytes;
  }

 private:
  interception::KernelScope scope_;
  std::unordered_map<std::string, int> num_runs_;
  // Weak: no other storage gets the address.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

nn::Sequential block() {
  return nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({8})),
                        nn::Linear(8, 32),
                        nn::GELU(),
                        nn::Dropout(0.3),
                        nn::Linear(32, 8),
                        nn::Dropout(0.2));
}

struct Trained {
  std::vector<at::Tensor> tensors;  // gradients, and numbers drawn behind them
  std::int64_t live_bytes = 0;      // between the last forward and its backward
  int num_products = 0;
  int num_norms = 0;
};

Trained trained(Mode mode) {
  torch::manual_seed(3);
  std::vector<nn::Sequential> nets;
  for (int i = 0; i < 3; ++i) nets.push_back(block());
  const at::Tensor input = at::randn({64, 8}).requires_grad_();
  Trained result;
  for (int step = 0; step < 2; ++step) {
    const Kernels kernels;
    at::Tensor x = input;
    for (nn::Sequential& net : nets)
      x = x + run_as(
                  mode, [net](const at::Tensor& h) mutable { return net->forward(h); }, x);
    result.live_bytes = kernels.live_bytes();
    x.square().sum().backward();
    result.num_products = kernels.num_runs("aten::addmm");
    result.num_norms = kernels.num_runs("aten::native_layer_norm");
  }
  for (const nn::Sequential& net : nets) {
    for (const at::Tensor& parameter : net->parameters())
      result.tensors.push_back(parameter.grad());
  }
  result.tensors.push_back(input.grad());
  result.tensors.push_back(at::rand({4}));
  return result;
}

void expect_equal(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << i;
}

TEST(KeptResults, GiveTheSameGradientsWithDropoutToTheBit) {
  const Trained kept = trained(Mode::kNoPart);
  expect_equal(trained(Mode::kPart).tensors, kept.tensors);
  expect_equal(trained(Mode::kSelective).tensors, kept.tensors);
}

TEST(KeptResults, ProductsRunOnceAndNormsAgain) {
  const Trained kept = trained(Mode::kNoPart);
  const Trained selective = trained(Mode::kSelective);
  EXPECT_EQ(kept.num_products, 6);
  EXPECT_EQ(selective.num_products, 6);
  EXPECT_GT(trained(Mode::kPart).num_products, 6);
  EXPECT_EQ(kept.num_norms, 3);
  EXPECT_EQ(selective.num_norms, 6);
}

TEST(KeptResults, TakeMemoryBetweenThatOfAPartAndOfNoPart) {
  const std::int64_t kept = trained(Mode::kNoPart).live_bytes;
  const std::int64_t selective = trained(Mode::kSelective).live_bytes;
  const std::int64_t part = trained(Mode::kPart).live_bytes;
  // Of each block the results of its two products: 64 x (32 + 8) floats.
  EXPECT_EQ(selective - part, std::int64_t{3} * 64 * (32 + 8) * 4);
  EXPECT_LT(selective, kept);
}

// Of a leaf and a part of it, in all modes.
void expect_same_bits(const std::function<at::Tensor(Mode, const at::Tensor&)>& output,
                      std::vector<std::int64_t> sizes = {6, 6}) {
  const auto gradient = [&](Mode mode) {
    torch::manual_seed(5);
    const at::Tensor x = at::randn(sizes).requires_grad_();
    output(mode, x * 1.5).square().sum().backward();
    return std::vector<at::Tensor>{x.grad(), at::rand({3})};
  };
  const std::vector<at::Tensor> kept = gradient(Mode::kNoPart);
  expect_equal(gradient(Mode::kPart), kept);
  expect_equal(gradient(Mode::kSelective), kept);
}

TEST(KeptResults, ThatAPartWritesToAreGivenAsTheyWere) {
  expect_same_bits([](Mode mode, const at::Tensor& input) {
    return run_as(
        mode,
        [](const at::Tensor& x) {
          at::Tensor product = x.mm(x);
          product.relu_();
          at::Tensor other = product.mm(x.t());
          other.slice(0, 0, 2).mul_(3);
          return other.tanh().mm(product);
        },
        input);
  });
}

TEST(KeptResults, ThatAPartWritesToPastAutogradAreGivenAsTheyWere) {
  expect_same_bits([](Mode mode, const at::Tensor& input) {
    return run_as(
        mode,
        [](const at::Tensor& x) {
          const at::Tensor product = x.mm(x);
          product.data().mul_(0.5);
          return product.sin().exp();
        },
        input);
  });
}

// With batches of sequences a linear layer of LibTorch adds its bias in place.
TEST(KeptResults, OfLinearLayersOnSequencesAreNotComputedAgain) {
  nn::Sequential net(nn::Linear(8, 16), nn::GELU(), nn::Linear(16, 8), nn::Tanh());
  const auto part = [net](const at::Tensor& x) mutable { return net->forward(x); };
  const auto num_products = [&part](Mode mode) {
    const Kernels kernels;
    run_as(mode, part, at::randn({2, 5, 8}).requires_grad_()).sum().backward();
    return kernels.num_runs("aten::mm") + kernels.num_runs("aten::addmm");
  };
  EXPECT_EQ(num_products(Mode::kSelective), num_products(Mode::kNoPart));
  EXPECT_GT(num_products(Mode::kPart), num_products(Mode::kNoPart));
  expect_same_bits(
      [&part](Mode mode, const at::Tensor& input) { return run_as(mode, part, input); }, {2, 5, 8});
}

TEST(KeptResults, ThatAreWrittenToBehindThePartAreComputedAgain) {
  expect_same_bits([](Mode mode, const at::Tensor& input) {
    const at::Tensor product = run_as(
        mode, [](const at::Tensor& x) { return x.sin().mm(x.cos()); }, input);
    product.mul_(2);
    return product;
  });
}

TEST(KeptResults, OfOperatorsThatDrawLeaveTheGeneratorAsTheyDid) {
  const KeptOperators dropout({"aten::native_dropout"});
  const auto part = [](const at::Tensor& x) {
    const at::Tensor dropped = std::get<0>(at::native_dropout(x.sin(), 0.5, true));
    return dropped * at::rand({6, 6}) * dropped.cos();
  };
  const auto gradient = [&](bool has_part) {
    torch::manual_seed(5);
    const at::Tensor x = at::randn({6, 6}).requires_grad_();
    const at::Tensor y = has_part ? checkpoint_activations({.keep = dropout}, part, x) : part(x);
    y.square().sum().backward();
    return std::vector<at::Tensor>{x.grad(), at::rand({3})};
  };
  expect_equal(gradient(true), gradient(false));
}

TEST(KeptResults, OfAttentionAndConvolutionsAreGiven) {
  expect_same_bits(
      [](Mode mode, const at::Tensor& input) {
        return run_as(
            mode,
            [](const at::Tensor& x) {
              return at::scaled_dot_product_attention(x.sin(), x.cos(), x.exp()).tanh();
            },
            input);
      },
      {2, 2, 5, 8});
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(2, 4, 3)),
                     nn::BatchNorm2d(4),
                     nn::ReLU(nn::ReLUOptions(true)),
                     nn::Conv2d(nn::Conv2dOptions(4, 2, 1)));
  expect_same_bits(
      [&net](Mode mode, const at::Tensor& input) {
        return run_as(
            mode, [net](const at::Tensor& x) mutable { return net->forward(x); }, input);
      },
      {2, 2, 5, 8});
}

TEST(KeptResults, StayForEachBackwardOfAGraphThatIsRetained) {
  const at::Tensor x = at::randn({6, 6}).requires_grad_();
  const auto part = [](const at::Tensor& input) { return input.mm(input).exp().sin(); };
  const Kernels kernels;
  const at::Tensor y = run_as(Mode::kSelective, part, x);
  y.sum().backward({}, /*retain_graph=*/true);
  y.sum().backward();

  EXPECT_EQ(kernels.num_runs("aten::mm"), 1 + 2 * 2) << "of the backwards two each";
  const at::Tensor plain = x.detach().clone().requires_grad_();
  const at::Tensor z = part(plain);
  z.sum().backward({}, /*retain_graph=*/true);
  z.sum().backward();
  EXPECT_TRUE(x.grad().equal(plain.grad()));
}

TEST(KeptResults, OfAPartWithinAnotherOneAreGivenToBoth) {
  for (const Mode outer : {Mode::kPart, Mode::kSelective}) {
    for (const Mode inner : {Mode::kPart, Mode::kSelective}) {
      expect_same_bits([outer, inner](Mode mode, const at::Tensor& input) {
        const auto product = [](const at::Tensor& x) { return x.sin().mm(x).tanh(); };
        const auto part = [&, mode](const at::Tensor& x) {
          const at::Tensor y = x.exp().mm(x);
          return run_as(mode == Mode::kNoPart ? mode : inner, product, y.cos()).mm(y);
        };
        const auto own = [part](const at::Tensor& x) { return part(x); };
        return run_as(mode == Mode::kNoPart ? mode : outer, own, input);
      });
    }
  }
}

TEST(KeptResultsRefuse, ARegionThatRunsAnotherOperator) {
  bool is_again = false;
  const at::Tensor x = at::randn({4, 4}).requires_grad_();
  const at::Tensor y = run_as(
      Mode::kSelective,
      [&is_again](const at::Tensor& t) {
        return (is_again ? at::addmm(t.detach(), t, t) : t.mm(t)).sin();
      },
      x);
  is_again = true;

  const Error error = error_of([&y] { y.sum().backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
  EXPECT_THAT(error.message(), HasSubstr("ran aten::addmm as number 0 of the operators"));
}

TEST(KeptOperatorsRefuse, NamesThatNothingCouldBeKeptOf) {
  const auto message = [](const std::string& name) {
    const Error error = error_of([&name] { (void)KeptOperators({"aten::mm", name}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.remedy(), HasSubstr("compute_intensive()"));
    return error.message();
  };
  EXPECT_THAT(message("aten::no_such"), HasSubstr("'aten::no_such' cannot be kept: there is no"));
  EXPECT_THAT(message("aten::linear"), HasSubstr("it is made of other operators"));
  EXPECT_THAT(message("aten::relu_"), HasSubstr("it writes to its arguments"));
  EXPECT_THAT(message("aten::view"), HasSubstr("or gives views"));
}

// ---- units of an unmodified model ----

struct Net : nn::Module {
  Net() : head(register_module("head", nn::Linear(8, 2))) {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), block()));
  }
  at::Tensor forward(at::Tensor x) {
    for (nn::Sequential& net : blocks) x = x + net->forward(x);
    return head->forward(x);
  }
  std::vector<nn::Sequential> blocks;
  nn::Linear head;
};

Trained trained_by_units(Mode mode) {
  torch::manual_seed(4);
  Net net;
  auto units = std::make_shared<UnitOfParameter>();
  for (const at::Tensor& parameter : net.head->parameters())
    units->emplace(parameter.unsafeGetTensorImpl(), kNoUnit);
  for (std::size_t i = 0; i < net.blocks.size(); ++i) {
    for (const at::Tensor& parameter : net.blocks[i]->parameters())
      units->emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(i));
  }
  const at::Tensor input = at::randn({64, 8});
  Trained result;
  for (int step = 0; step < 2; ++step) {
    const Kernels kernels;
    at::Tensor output;
    {
      std::optional<KeptOperators> keep;
      if (mode == Mode::kSelective) keep = KeptOperators::compute_intensive();
      std::optional<UnitForward> forward;
      if (mode != Mode::kNoPart) forward.emplace(units, Comparison::kValues, keep);
      output = net.forward(input * (step + 1));
    }
    result.live_bytes = kernels.live_bytes();
    output.square().sum().backward();
    result.num_products = kernels.num_runs("aten::addmm");
    result.num_norms = kernels.num_runs("aten::native_layer_norm");
  }
  for (const at::Tensor& parameter : net.parameters()) result.tensors.push_back(parameter.grad());
  result.tensors.push_back(at::rand({4}));
  return result;
}

TEST(KeptResults, OfUnitsGiveTheSameGradientsToTheBit) {
  const Trained kept = trained_by_units(Mode::kNoPart);
  expect_equal(trained_by_units(Mode::kPart).tensors, kept.tensors);
  expect_equal(trained_by_units(Mode::kSelective).tensors, kept.tensors);
}

TEST(KeptResults, OfUnitsTakeMemoryBetweenBothAndNoSecondProduct) {
  const Trained kept = trained_by_units(Mode::kNoPart);
  const Trained selective = trained_by_units(Mode::kSelective);
  const Trained recomputed = trained_by_units(Mode::kPart);
  EXPECT_EQ(selective.num_products, kept.num_products);
  EXPECT_GT(recomputed.num_products, kept.num_products);
  EXPECT_EQ(selective.num_norms, recomputed.num_norms);
  EXPECT_LT(recomputed.live_bytes, selective.live_bytes);
  EXPECT_LT(selective.live_bytes, kept.live_bytes);
}

}  // namespace
}  // namespace accel::recompute::kept_results_test

// Unmodified modules compute the same on pages as in memory, to the bit: outputs, gradients, and weights after steps of
// an optimizer, with every parameter evicted before each forward, backward and step.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libaccel/pager/module_parameters.h"
#include "libaccel/pager/pager.h"

namespace accel::pager {
namespace {

using torch::Tensor;

struct Model : torch::nn::Module {
  virtual Tensor forward(const Tensor& input) = 0;
};
using MakeModel = std::function<std::shared_ptr<Model>()>;

struct Mlp : Model {
  Mlp() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }
  Tensor forward(const Tensor& x) override { return fc3(torch::relu(fc2(torch::relu(fc1(x))))); }
  torch::nn::Linear fc1{16, 64}, fc2{64, 64}, fc3{64, 8};
};

struct Encoder : Model {
  Encoder() {
    register_module("table", table);
    register_module("layer", layer);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor tokens = (x.abs() * 7).to(torch::kLong).clamp_max(31);
    return layer(table(tokens));
  }
  torch::nn::Embedding table{32, 16};
  torch::nn::TransformerEncoderLayer layer{
      torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0.1)};
};

struct Lstm : Model {
  Lstm() { register_module("lstm", lstm); }
  Tensor forward(const Tensor& x) override {
    return std::get<0>(lstm(x.unsqueeze(0).expand({5, x.size(0), x.size(1)})));
  }
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(16, 24).num_layers(2).bidirectional(true)};
};

struct ConvNet : Model {
  ConvNet() {
    register_module("conv1", conv1);
    register_module("norm", norm);
    register_module("conv2", conv2);
    conv2->weight.set_data(conv2->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  Tensor forward(const Tensor& x) override {
    return conv2(torch::relu(norm(conv1(x.view({-1, 1, 4, 4})))));
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 4, 3)};
};

// The same tensor under two names.
struct TiedEmbedding : Model {
  TiedEmbedding() {
    register_module("table", table);
    register_module("mix", mix);
    head->weight = head->replace_parameter_with(table->weight);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor tokens = (x.abs() * 7).to(torch::kLong).clamp_max(31);
    return head(mix(table(tokens)));
  }
  struct HeadImpl : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
    Tensor replace_parameter_with(const Tensor& other) {
      parameters_.find("weight");
      return parameters_["weight"] = other;
    }
  };
  TORCH_MODULE(Head);
  torch::nn::Embedding table{32, 16};
  torch::nn::Linear mix{16, 16};
  Head head{torch::nn::LinearOptions(16, 32).bias(false)};
};

// Two parameters over one storage, and another that is frozen.
struct SharedStorage : Model {
  SharedStorage() {
    const Tensor both = torch::randn({2, 16, 16});
    low = register_parameter("low", both[0].detach());
    high = register_parameter("high", both[1].t().detach());
    frozen = register_parameter("frozen", torch::randn({16}), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) override {
    return torch::tanh(x.matmul(low)).matmul(high) * frozen;
  }
  Tensor low, high, frozen;
};

// As weight_norm does it: the weight is computed from views of parameters in each forward.
struct WeightNorm : Model {
  WeightNorm() {
    direction = register_parameter("direction", torch::randn({16, 16}));
    size = register_parameter("size", torch::rand({16, 1}) + 0.5);
  }
  Tensor forward(const Tensor& x) override {
    if (rows.empty()) rows = direction.detach().unbind(0);  // views that live across steps
    const Tensor weight = size * direction / direction.norm(2, 1, true);
    return torch::linear(x, weight + torch::_weight_norm(direction, size)) + rows[3];
  }
  Tensor direction, size;
  std::vector<Tensor> rows;
};

struct HalfPrecision : Model {
  HalfPrecision() {
    register_module("fc", fc);
    fc->to(torch::kBFloat16);
  }
  Tensor forward(const Tensor& x) override { return fc(x.to(torch::kBFloat16)).to(torch::kFloat); }
  torch::nn::Linear fc{16, 32};
};

template <typename M>
MakeModel make() {
  return [] { return std::make_shared<M>(); };
}

struct Case {
  const char* name;
  MakeModel make;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Mlp", make<Mlp>()},
      {"Encoder", make<Encoder>()},
      {"Lstm", make<Lstm>()},
      {"ConvNet", make<ConvNet>()},
      {"TiedEmbedding", make<TiedEmbedding>()},
      {"SharedStorage", make<SharedStorage>()},
      {"WeightNorm", make<WeightNorm>()},
      {"HalfPrecision", make<HalfPrecision>()},
  };
  return all;
}

struct Record {
  std::vector<Tensor> losses;
  std::vector<Tensor> gradients;
  std::vector<Tensor> weights;
};

enum class Optimizer { kSgd, kAdamW };

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind, const Model& model) {
  std::vector<Tensor> trained;
  for (const Tensor& parameter : model.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  if (kind == Optimizer::kSgd)
    return std::make_unique<torch::optim::SGD>(trained,
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  return std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.01));
}

// Three steps of two accumulated backwards each. between: called before each forward, backward and step.
Record train(Model& model,
             Optimizer kind,
             const std::function<void()>& between,
             const std::function<void()>& end) {
  Record record;
  const auto optimizer = make_optimizer(kind, model);
  torch::manual_seed(11);
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    for (int part = 0; part < 2; ++part) {
      const Tensor input = torch::randn({6, 16});
      between();
      const Tensor loss = model.forward(input).pow(2).mean();
      between();
      loss.backward();
      record.losses.push_back(loss.detach().clone());
    }
    for (const Tensor& parameter : model.parameters())
      if (parameter.grad().defined()) record.gradients.push_back(parameter.grad().clone());
    between();
    optimizer->step();
    end();
  }
  between();
  for (const Tensor& parameter : model.parameters())
    record.weights.push_back(parameter.detach().clone());
  return record;
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ' ' << i;
}

void expect_equal(const Record& a, const Record& b) {
  ASSERT_FALSE(a.gradients.empty());
  expect_equal(a.losses, b.losses, "loss");
  expect_equal(a.gradients, b.gradients, "gradient");
  expect_equal(a.weights, b.weights, "weight");
}

class PagedModel : public ::testing::TestWithParam<std::tuple<std::size_t, Optimizer>> {
 protected:
  std::shared_ptr<Model> make_seeded() const {
    torch::manual_seed(3);
    auto model = cases()[std::get<0>(GetParam())].make();
    model->train();
    return model;
  }
  Optimizer optimizer() const { return std::get<1>(GetParam()); }
};

TEST_P(PagedModel, TrainsAsInMemoryWithAllEvictedBeforeEachPart) {
  const auto plain = make_seeded();
  const Record expected = train(
      *plain, optimizer(), [] {}, [] {});
  const auto paged = make_seeded();
  Pager pager(parameters_of(*paged), {.unit_bytes = 2048});

  const Record record = train(
      *paged, optimizer(), [&] { pager.evict_all(); }, [&] { pager.end_step(); });

  expect_equal(record, expected);
  EXPECT_GT(pager.statistics().num_evictions, 0u);
  pager.evict_all();
  EXPECT_EQ(pager.statistics().live_bytes, 0u);
}

// Each operator's units fit, and hardly more: units come and go all the time, and the second step's are learned.
TEST_P(PagedModel, TrainsAsInMemoryUnderASmallBudgetWithLearnedUnits) {
  const auto plain = make_seeded();
  const Record expected = train(
      *plain, optimizer(), [] {}, [] {});
  for (const int prefetch : {0, 2}) {
    const auto paged = make_seeded();
    std::size_t largest = 0;
    for (const Tensor& parameter : paged->parameters())
      largest = std::max(largest, parameter.storage().nbytes());
    const std::size_t budget = 4 * (largest / 4096 + 1) * 4096;
    Pager pager(parameters_of(*paged),
                {.max_live_bytes = budget,
                 .unit_bytes = 1024,
                 .prefetch_units = prefetch,
                 .learns_units = true});

    const Record record = train(
        *paged, optimizer(), [] {}, [&] { pager.end_step(); });

    expect_equal(record, expected);
    EXPECT_LE(pager.statistics().peak_bytes, budget);
  }
}

TEST_P(PagedModel, HasItsValuesInOrdinaryMemoryWhenThePagerIsGone) {
  const auto plain = make_seeded();
  const auto paged = make_seeded();
  {
    Pager pager(parameters_of(*paged), {});
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : paged->parameters()) (void)parameter.sum();
  }

  const auto expected = plain->parameters();
  const auto values = paged->parameters();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(torch::equal(values[i], expected[i]));
    EXPECT_EQ(values[i].strides(), expected[i].strides());
    EXPECT_EQ(values[i].key_set(), expected[i].key_set());
    EXPECT_EQ(values[i].requires_grad(), expected[i].requires_grad());
  }
  expect_equal(train(
                   *paged, optimizer(), [] {}, [] {}),
               train(
                   *plain, optimizer(), [] {}, [] {}));
}

INSTANTIATE_TEST_SUITE_P(OfEachKind,
                         PagedModel,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 8),
                                            ::testing::Values(Optimizer::kSgd, Optimizer::kAdamW)),
                         [](const auto& info) {
                           return std::string(cases()[std::get<0>(info.param)].name) +
                                  (std::get<1>(info.param) == Optimizer::kSgd ? "Sgd" : "AdamW");
                         });

}  // namespace
}  // namespace accel::pager

// A thousand small models made at random: layers of many kinds, used once or more often, tied, shared, frozen, of two
// dtypes, some of them skipped in some steps. On pages, under budgets and unit sizes made at random as well, they give
// what they give in memory, to the bit. A failure prints the seed of its model.

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libaccel/pager/module_parameters.h"
#include "libaccel/pager/pager.h"

namespace accel::pager {
namespace {

using torch::Tensor;

class RandomModel : public torch::nn::Module {
 public:
  explicit RandomModel(std::uint64_t seed) : random_(seed), width_(4 * (1 + below(4))) {
    torch::manual_seed(static_cast<std::int64_t>(seed));
    const std::size_t num_layers = 1 + below(6);
    for (std::size_t i = 0; i < num_layers; ++i) add_layer("layer" + std::to_string(i));
    if (below(3) == 0)
      for (Tensor& parameter : parameters())
        if (below(3) == 0) parameter.requires_grad_(false);
  }

  // choices: the layers that this step leaves out.
  Tensor forward(Tensor x, std::uint64_t choices) {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if (i == 0 || (choices >> i & 3) != 3) x = x + layers_[i](torch::tanh(x));
    return x;
  }
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  using Layer = std::function<Tensor(const Tensor&)>;

  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

  void add_layer(const std::string& name) {
    switch (below(8)) {
      case 0:
      case 1: {
        auto linear = register_module(
            name, torch::nn::Linear(torch::nn::LinearOptions(width_, width_).bias(below(2) == 0)));
        layers_.push_back([linear](const Tensor& x) { return linear->forward(x); });
        break;
      }
      case 2: {
        auto norm =
            register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width_})));
        layers_.push_back([norm](const Tensor& x) { return norm->forward(x); });
        break;
      }
      case 3: {  // used again, further down
        if (layers_.empty()) return add_layer(name);
        layers_.push_back(layers_[static_cast<std::size_t>(below(std::ssize(layers_)))]);
        break;
      }
      case 4: {  // the same matrix both ways
        const Tensor weight = register_parameter(name, torch::randn({width_, width_}) / 4);
        layers_.push_back(
            [weight](const Tensor& x) { return x.matmul(weight).matmul(weight.t()); });
        break;
      }
      case 5: {  // two parameters over one storage
        const Tensor both = torch::randn({2, width_, width_}) / 4;
        const Tensor low = register_parameter(name + "low", both[0].detach());
        const Tensor high = register_parameter(name + "high", both[1].t().detach());
        layers_.push_back([low, high](const Tensor& x) { return x.matmul(low) + x.matmul(high); });
        break;
      }
      case 6: {  // another dtype
        const Tensor weight = register_parameter(name, torch::randn({width_}, torch::kDouble));
        layers_.push_back([weight](const Tensor& x) { return (x * weight).to(torch::kFloat); });
        break;
      }
      default: {  // rows looked up, some twice, some never
        const Tensor table = register_parameter(name, torch::randn({width_ + 3, width_}));
        layers_.push_back([table](const Tensor& x) {
          return x *
                 table.index_select(0, (x.select(1, 0).abs() * 5).to(torch::kLong).clamp_max(6));
        });
      }
    }
  }

  std::mt19937_64 random_;
  std::int64_t width_;
  std::vector<Layer> layers_;
};

std::vector<Tensor> train(RandomModel& model, std::uint64_t seed, Pager* pager) {
  std::mt19937_64 random(seed + 1);
  std::vector<Tensor> trained;
  for (const Tensor& parameter : model.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.05).momentum(0.5));
  std::vector<Tensor> results;
  torch::manual_seed(static_cast<std::int64_t>(seed));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss =
        model.forward(torch::randn({3, model.width()}).requires_grad_(), random()).pow(2).mean();
    if (pager != nullptr && random() % 2 == 0) pager->evict_all();
    if (pager == nullptr) (void)random();
    loss.backward();
    for (const Tensor& parameter : trained)
      if (parameter.grad().defined()) results.push_back(parameter.grad().clone());
    optimizer.step();
    if (pager != nullptr) pager->end_step();
    results.push_back(loss.detach());
  }
  for (const Tensor& parameter : model.parameters()) results.push_back(parameter.detach().clone());
  return results;
}

bool are_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!torch::equal(a[i], b[i])) return false;
  return true;
}

TEST(RandomModels, AThousandOfThemTrainOnPagesAsInMemory) {
  std::uint64_t num_evictions = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    RandomModel plain(seed);
    const auto expected = train(plain, seed, nullptr);
    RandomModel paged(seed);
    // A page of 4096 bytes holds the largest parameter; an operator takes two or three.
    const PagerOptions options{
        .max_live_bytes = (3 + random() % 4) * 4096,
        .unit_bytes = std::size_t{64} << random() % 4,
        .resident_below_bytes = random() % 3 == 0 ? std::size_t{64} : 0,
        .prefetch_units = static_cast<int>(random() % 4 == 0),
        .learns_units = random() % 2 == 0,
    };
    Pager pager(parameters_of(paged), options);

    const auto results = train(paged, seed, &pager);

    ASSERT_TRUE(are_equal(results, expected)) << "seed " << seed;
    ASSERT_LE(pager.statistics().peak_bytes, options.max_live_bytes) << "seed " << seed;
    num_evictions += pager.statistics().num_evictions;
  }
  EXPECT_GT(num_evictions, 2'000u) << "a check that could not fail";
}

}  // namespace
}  // namespace accel::pager

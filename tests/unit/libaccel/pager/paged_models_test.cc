// Unmodified modules compute the same on pages as in memory, to the bit: outputs, gradients, and weights after steps of
// an optimizer, with every parameter evicted before each forward, backward and step.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libaccel/engine/pager/module_parameters.h"
#include "libaccel/engine/pager/pager.h"
#include "tests/support/model_zoo.h"

namespace accel::pager::paged_models_test {
namespace {

using torch::Tensor;

struct Record {
  std::vector<Tensor> losses;
  std::vector<Tensor> gradients;
  std::vector<Tensor> weights;
};

enum class Optimizer { kSgd, kAdamW };

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind,
                                                        const test::ZooModel& model) {
  std::vector<Tensor> trained;
  for (const Tensor& parameter : model.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  if (kind == Optimizer::kSgd)
    return std::make_unique<torch::optim::SGD>(trained,
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  return std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.01));
}

// Three steps of two accumulated backwards each. between: called before each forward, backward and step.
Record train(test::ZooModel& model,
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
  std::shared_ptr<test::ZooModel> make_seeded() const {
    torch::manual_seed(3);
    auto model = test::model_zoo()[std::get<0>(GetParam())].make();
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
                         ::testing::Combine(::testing::Range<std::size_t>(0, test::kZooSize),
                                            ::testing::Values(Optimizer::kSgd, Optimizer::kAdamW)),
                         [](const auto& info) {
                           return test::zoo_name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == Optimizer::kSgd ? "Sgd" : "AdamW");
                         });

}  // namespace
}  // namespace accel::pager::paged_models_test

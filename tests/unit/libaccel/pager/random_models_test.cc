// A thousand small models made at random (random_model.h): on pages, under budgets and unit sizes made at random as
// well, they give what they give in memory, to the bit. A failure prints the seed of its model.

#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libaccel/engine/pager/module_parameters.h"
#include "libaccel/engine/pager/pager.h"
#include "tests/support/random_model.h"

namespace accel::pager::random_models_test {
namespace {

using torch::Tensor;

std::vector<Tensor> train(test::RandomModel& model, std::uint64_t seed, Pager* pager) {
  std::mt19937_64 random(seed + 1);
  std::vector<Tensor> trained;
  for (const Tensor& parameter : model.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.05).momentum(0.5));
  std::vector<Tensor> results;
  torch::manual_seed(static_cast<std::int64_t>(seed));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model.begin_batch(random());
    const Tensor loss =
        model.forward(torch::randn({3, model.width()}).requires_grad_()).pow(2).mean();
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
    test::RandomModel plain(seed);
    const auto expected = train(plain, seed, nullptr);
    test::RandomModel paged(seed);
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
}  // namespace accel::pager::random_models_test

// Orders of one pass: what is drawn, when, and how an interrupted pass is begun again.
// That the orders are PyTorch's own is shown in tests/peer/data_sharding.py.

#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/samplers.h>

namespace accel::samplers_test {
namespace {

using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

Indices list_of(const IndexOrder& order) {
  Indices list;
  for (std::int64_t position = 0; position < order.size(); ++position)
    list.push_back(order[position]);
  return list;
}

Indices pass_of(Sampler& sampler) {
  Indices list = list_of(sampler.begin_pass());
  sampler.end_pass();
  return list;
}

Indices sorted(Indices list) {
  std::sort(list.begin(), list.end());
  return list;
}

Indices range(std::int64_t size) {
  Indices list(static_cast<size_t>(size));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

at::Generator generator_with(std::uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

void seed_default_generator(std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(seed);
}

TEST(SequentialSampler, CountsUp) {
  SequentialSampler sampler(4);
  EXPECT_EQ(pass_of(sampler), range(4));
}

TEST(RandomSampler, VisitsEveryElementOnce) {
  RandomSampler sampler(100, {.generator = generator_with(5)});

  const Indices order = pass_of(sampler);

  EXPECT_NE(order, range(100));
  EXPECT_EQ(sorted(order), range(100));
}

TEST(RandomSampler, RepeatsPermutationsForMoreSamples) {
  RandomSampler sampler(4, {.num_samples = 10, .generator = generator_with(5)});

  const Indices order = pass_of(sampler);

  ASSERT_EQ(order.size(), 10U);
  EXPECT_EQ(sorted({order.begin(), order.begin() + 4}), range(4));
  EXPECT_EQ(sorted({order.begin() + 4, order.begin() + 8}), range(4));
}

TEST(RandomSampler, DrawsWithReplacement) {
  RandomSampler sampler(3,
                        {.replacement = true, .num_samples = 50, .generator = generator_with(5)});

  const Indices order = pass_of(sampler);

  ASSERT_EQ(order.size(), 50U);
  EXPECT_THAT(order, Each(Ge(0)));
  EXPECT_THAT(order, Each(Lt(3)));
}

TEST(RandomSampler, DependsOnTheDefaultGeneratorWithoutOneOfItsOwn) {
  RandomSampler sampler(50);

  seed_default_generator(7);
  const Indices first = pass_of(sampler);
  const Indices second = pass_of(sampler);
  seed_default_generator(7);

  EXPECT_EQ(pass_of(sampler), first);
  EXPECT_NE(first, second);
}

TEST(RandomSampler, BeginsAnInterruptedPassAgain) {
  RandomSampler sampler(50, {.generator = generator_with(5)});
  pass_of(sampler);
  const Indices interrupted = list_of(sampler.begin_pass());
  const StateDict state = sampler.state_dict();

  RandomSampler resumed(50, {.generator = generator_with(99)});
  resumed.load_state_dict(state);

  EXPECT_EQ(pass_of(resumed), interrupted);
  sampler.end_pass();
  EXPECT_EQ(pass_of(resumed), pass_of(sampler));
}

TEST(RandomSampler, BeginsAnInterruptedPassAgainWithoutDrawingFromTheDefaultGenerator) {
  RandomSampler sampler(50);
  const Indices interrupted = list_of(sampler.begin_pass());
  const StateDict state = sampler.state_dict();
  RandomSampler resumed(50);
  resumed.load_state_dict(state);
  const at::Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();

  const Indices order = pass_of(resumed);

  EXPECT_EQ(order, interrupted);
  EXPECT_TRUE(before.equal(at::globalContext().defaultGenerator(at::kCPU).get_state()));
  EXPECT_NE(pass_of(resumed), interrupted);
}

TEST(RandomSampler, StateBetweenPassesIsThatOfTheNextPass) {
  RandomSampler sampler(50, {.generator = generator_with(5)});
  pass_of(sampler);
  const StateDict state = sampler.state_dict();
  const Indices second = pass_of(sampler);

  RandomSampler resumed(50, {.generator = generator_with(99)});
  resumed.load_state_dict(state);

  EXPECT_EQ(pass_of(resumed), second);
}

TEST(RandomSampler, RefusesAnEmptyDataset) {
  EXPECT_THROW(RandomSampler(0), Error);
}

TEST(RandomSampler, RefusesNoSamples) {
  EXPECT_THROW(RandomSampler(5, {.num_samples = 0}), Error);
}

TEST(SeedableRandomSampler, DependsOnSeedAndEpochOnly) {
  SeedableRandomSampler sampler(50, 42);
  const std::vector<Indices> epochs = {pass_of(sampler), pass_of(sampler), pass_of(sampler)};

  sampler.set_epoch(0);

  EXPECT_EQ(epochs, (std::vector<Indices>{pass_of(sampler), pass_of(sampler), pass_of(sampler)}));
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(SeedableRandomSampler, UsesEpochPlusSeed) {
  SeedableRandomSampler sampler(50, 42);
  SeedableRandomSampler next_seed(50, 43);
  const Indices of_seed_43 = pass_of(next_seed);

  EXPECT_NE(pass_of(sampler), of_seed_43);
  EXPECT_EQ(pass_of(sampler), of_seed_43);
}

TEST(SeedableRandomSampler, StaysInItsEpochUntilThePassEnds) {
  SeedableRandomSampler sampler(50, 42);
  const Indices abandoned = list_of(sampler.begin_pass());

  EXPECT_EQ(pass_of(sampler), abandoned);
}

TEST(SeedableRandomSampler, TakesTorchsInitialSeedByDefault) {
  seed_default_generator(1234);
  EXPECT_EQ(SeedableRandomSampler(5).initial_seed(), 1234);
}

TEST(SeedableRandomSampler, KeepsItsStateAcrossARestart) {
  SeedableRandomSampler sampler(50, 42);
  pass_of(sampler);
  SeedableRandomSampler resumed(50, 1);
  resumed.load_state_dict(sampler.state_dict());

  EXPECT_EQ(pass_of(resumed), pass_of(sampler));
}

TEST(SeedableRandomSampler, NamesWhatAStateLacks) {
  SeedableRandomSampler sampler(50, 42);
  EXPECT_THROW(sampler.load_state_dict({}), Error);
}

TEST(PermutationSampler, VisitsEveryElementOnceInAnotherOrderEachEpoch) {
  for (const std::int64_t size : {1, 2, 3, 10, 97, 1000, 4096}) {
    PermutationSampler sampler(size, 5);
    std::vector<Indices> passes;
    for (int epoch = 0; epoch < 2; ++epoch) {
      const IndexOrder order = sampler.begin_pass();
      ASSERT_EQ(order.size(), size);
      Indices pass;
      for (std::int64_t i = 0; i < size; ++i) pass.push_back(order[i]);
      sampler.end_pass();
      Indices sorted = pass;
      std::sort(sorted.begin(), sorted.end());
      for (std::int64_t i = 0; i < size; ++i)
        ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i) << size;
      passes.push_back(std::move(pass));
    }
    if (size > 9) {
      EXPECT_NE(passes[0], passes[1]) << size;
    }
  }
}

// Where each of 8 parts of the elements is put among 8 parts of the positions: 64 counts of 1024 / 8 each on average. The sum of
// squared deviations over the average is chi-squared with 49 degrees of freedom, above 110 once in a million orders.
TEST(PermutationSampler, PutsElementsAnywhere) {
  for (const std::int64_t seed : {0, 1, 2, 12345}) {
    const IndexOrder order = PermutationSampler(8192, seed).begin_pass();
    std::vector<double> counts(64);
    for (std::int64_t i = 0; i < order.size(); ++i)
      ++counts[static_cast<std::size_t>(i / 1024 * 8 + order[i] / 1024)];
    double chi_squared = 0;
    for (const double count : counts) chi_squared += (count - 128) * (count - 128) / 128;
    EXPECT_LT(chi_squared, 110) << "seed " << seed;
  }
}

TEST(PermutationSampler, KeepsItsOrderAcrossARestart) {
  PermutationSampler sampler(100, 7);
  sampler.set_epoch(3);
  PermutationSampler other(100, 8);

  other.load_state_dict(sampler.state_dict());

  const IndexOrder left = sampler.begin_pass();
  const IndexOrder right = other.begin_pass();
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(left[i], right[i]);
}

TEST(PermutationSampler, RefusesAnEmptyDataset) {
  EXPECT_THROW(PermutationSampler(0), Error);
}

}  // namespace
}  // namespace accel::samplers_test

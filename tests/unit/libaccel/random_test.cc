// Seeding, saving and synchronising the random generators.

#include <functional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>
#include <accel/state.h>

#include "tests/support/rank_group.h"

namespace accel::random_test {
namespace {

ErrorCode code_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kCount_;
}

TEST(Random, TheSameSeedGivesTheSameNumbers) {
  set_seed(42);
  const at::Tensor first = at::rand({4});
  set_seed(42);

  EXPECT_TRUE(at::equal(at::rand({4}), first));
  EXPECT_FALSE(at::equal(at::rand({4}), first));
}

TEST(Random, DeterministicAsksLibTorchForIt) {
  set_seed(1, {.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(Random, ARestoredStateGoesOnAsBefore) {
  set_seed(7);
  at::rand({3});
  const StateDict state = rng_state();
  const at::Tensor expected = at::rand({5});

  set_seed(8);
  set_rng_state(state);

  EXPECT_TRUE(at::equal(at::rand({5}), expected));
}

TEST(Random, AStateThatDoesNotFitIsRefused) {
  StateDict cut;
  cut.tensors["torch_manual_seed"] = at::zeros({10}, at::kByte);

  EXPECT_EQ(code_of([&] { set_rng_state(cut); }), ErrorCode::kCheckpointMismatch);
  EXPECT_EQ(code_of([] { set_rng_state({}); }), ErrorCode::kCheckpointMismatch);
}

TEST(RandomOfTwoRanks, DeviceSpecificSeedsDiffer) {
  test::run_ranks(2, [] {
    const PartialState state;
    set_seed(3, {.device_specific = true});
    const at::Tensor drawn = gather(at::rand({4}));
    EXPECT_FALSE(at::equal(drawn.slice(0, 0, 4), drawn.slice(0, 4, 8)));

    set_seed(3);
    const at::Tensor same = gather(at::rand({4}));
    EXPECT_TRUE(at::equal(same.slice(0, 0, 4), same.slice(0, 4, 8)));
    EXPECT_TRUE(at::equal(same.slice(0, 0, 4), drawn.slice(0, 0, 4))) << "rank 0 keeps the seed";
  });
}

TEST(RandomOfTwoRanks, SynchronisingGivesEveryRankTheStateOfRankZero) {
  test::run_ranks(2, [] {
    const PartialState state;
    set_seed(10, {.device_specific = true});
    at::Generator own = at::make_generator<at::CPUGeneratorImpl>(100 + state.process_index());

    synchronize_rng_states({RNGType::kTorch, RNGType::kGenerator}, own);

    const at::Tensor drawn = gather(at::rand({4}));
    const at::Tensor drawn_own = gather(at::rand({4}, own));
    EXPECT_TRUE(at::equal(drawn.slice(0, 0, 4), drawn.slice(0, 4, 8)));
    EXPECT_TRUE(at::equal(drawn_own.slice(0, 0, 4), drawn_own.slice(0, 4, 8)));
    EXPECT_EQ(code_of([] { synchronize_rng_states({RNGType::kGenerator}); }),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of([] { synchronize_rng_state(RNGType::kXla); }), ErrorCode::kUnsupported);

    set_seed(10, {.device_specific = true});
    synchronize_rng_state(RNGType::kTorch);
    const at::Tensor drawn_again = gather(at::rand({4}));
    EXPECT_TRUE(at::equal(drawn_again.slice(0, 0, 4), drawn_again.slice(0, 4, 8)));
  });
}

}  // namespace
}  // namespace accel::random_test

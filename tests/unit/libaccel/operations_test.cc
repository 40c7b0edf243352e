// The collectives, with the numbers of the contract (4.15) on two and three ranks.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/operations.h>
#include <accel/state.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::operations_test {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// [1, 2] on rank 0, [3, 4] on rank 1, ...
at::Tensor two_numbers(const PartialState& state) {
  return at::arange(1, 3, at::kFloat) + 2 * state.process_index();
}

std::vector<float> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).flatten().contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

TEST(OperationsAlone, ReturnTheirInput) {
  PartialState::reset();
  const PartialState state;
  const at::Tensor scalar = at::tensor(3.0);
  std::vector<std::string> objects = {"a"};

  EXPECT_TRUE(gather(scalar).is_same(scalar));
  EXPECT_TRUE(broadcast(scalar).is_same(scalar));
  EXPECT_TRUE(pad_across_processes(scalar).is_same(scalar));
  EXPECT_FALSE(reduce(scalar).is_same(scalar)) << "reduce() returns new tensors";
  broadcast_object_list(objects);
  EXPECT_THAT(gather_object(objects), ElementsAre("a"));
  PartialState::reset();
}

TEST(Operations, GiveTheNumbersOfTheContract) {
  test::run_ranks(2, [] {
    const PartialState state;
    const at::Tensor input = two_numbers(state);

    EXPECT_THAT(values(gather(input)), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(values(reduce(input, Reduction::kSum)), ElementsAre(4, 6));
    EXPECT_THAT(values(reduce(input)), ElementsAre(2, 3));
    EXPECT_THAT(values(reduce(input, Reduction::kMax)), ElementsAre(3, 4));
    EXPECT_TRUE(at::equal(input, two_numbers(state))) << "the input is left as it was";
    EXPECT_THAT(values(broadcast(input)), ElementsAre(1, 2));
  });
}

TEST(Operations, GatherMakesScalarsAndViewsWhole) {
  test::run_ranks(3, [] {
    const PartialState state;
    const at::Tensor scalar = at::full({}, state.process_index(), at::kLong);
    const at::Tensor transposed = (at::arange(4).view({2, 2}) + 10 * state.process_index()).t();

    const at::Tensor scalars = gather(scalar);
    const at::Tensor rows = gather(transposed);

    EXPECT_EQ(scalars.sizes(), at::IntArrayRef({3}));
    EXPECT_THAT(values(scalars), ElementsAre(0, 1, 2));
    EXPECT_EQ(rows.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_THAT(values(rows.slice(0, 0, 2)), ElementsAre(0, 2, 1, 3));
    EXPECT_THAT(values(rows.slice(0, 4, 6)), ElementsAre(20, 22, 21, 23));
  });
}

TEST(Operations, KeepNestedStructureAndOtherLeaves) {
  test::run_ranks(2, [] {
    const PartialState state;
    using Data = std::map<std::string, std::variant<std::string, std::vector<at::Tensor>>>;
    const Data data = {{"name", std::string("text")},
                       {"tensors", std::vector<at::Tensor>{two_numbers(state)}}};

    const Data gathered = gather(data);

    EXPECT_EQ(std::get<std::string>(gathered.at("name")), "text");
    EXPECT_THAT(values(std::get<1>(gathered.at("tensors"))[0]), ElementsAre(1, 2, 3, 4));
  });
}

TEST(Operations, MoveEveryElementType) {
  test::run_ranks(2, [] {
    const PartialState state;
    for (const auto type : {at::kBool,
                            at::kByte,
                            at::kShort,
                            at::kInt,
                            at::kLong,
                            at::kHalf,
                            at::kBFloat16,
                            at::kDouble,
                            at::kComplexFloat,
                            at::kFloat8_e4m3fn}) {
      const at::Tensor own = at::full({2}, state.process_index(), at::kFloat).to(type);
      at::Tensor gathered = gather(own);
      at::Tensor received = broadcast(own.clone(), 1);

      EXPECT_EQ(gathered.scalar_type(), type);
      if (type == at::kComplexFloat) {
        gathered = at::real(gathered);
        received = at::real(received);
      }
      EXPECT_THAT(values(gathered), ElementsAre(0, 0, 1, 1)) << type;
      EXPECT_THAT(values(received), ElementsAre(1, 1)) << type;
    }
  });
}

TEST(Operations, EmptyTensorsGatherToEmptyTensors) {
  test::run_ranks(2, [] {
    const PartialState state;
    EXPECT_EQ(gather(at::ones({0, 3})).sizes(), at::IntArrayRef({0, 3}));
    EXPECT_EQ(reduce(at::ones({0})).numel(), 0);
  });
}

TEST(Operations, GradientsDoNotFollowTheValues) {
  test::run_ranks(2, [] {
    const PartialState state;
    const at::Tensor weight = two_numbers(state).set_requires_grad(true);

    EXPECT_FALSE(gather(weight).requires_grad());
    EXPECT_FALSE(reduce(weight).requires_grad());
    EXPECT_THAT(values(broadcast(weight)), ElementsAre(1, 2));
    EXPECT_TRUE(weight.is_leaf());
  });
}

TEST(Operations, MeanOfIntegersIsRefused) {
  test::run_ranks(2, [] {
    const PartialState state;
    EXPECT_EQ(error_of([] { reduce(at::ones({2}, at::kLong)); }).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_THAT(values(reduce(at::ones({2}, at::kLong), Reduction::kSum)), ElementsAre(2, 2));
  });
}

TEST(Operations, BroadcastFromARankThatDoesNotExistIsRefused) {
  test::run_ranks(2, [] {
    const PartialState state;
    const Error error = error_of([&] { broadcast(two_numbers(state), 2); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.remedy(), HasSubstr("from 0 to 1"));
  });
}

TEST(Operations, BroadcastFillsViewsInPlace) {
  test::run_ranks(2, [] {
    const PartialState state;
    at::Tensor matrix = at::full({2, 3}, state.process_index(), at::kFloat);
    broadcast(matrix.select(1, 1), 1);
    EXPECT_THAT(values(matrix.select(1, 1)), ElementsAre(1, 1));
    EXPECT_THAT(values(matrix.select(1, 0)),
                ElementsAre(state.process_index(), state.process_index()));
  });
}

TEST(Operations, ReduceWithNoneKeepsWhatEachRankHasAndWaitsForNobody) {
  test::run_ranks(2, [] {
    const PartialState state;
    const at::Tensor own = two_numbers(state);
    if (state.is_main_process()) {
      EXPECT_TRUE(reduce(own, Reduction::kNone).is_same(own));
    }
    EXPECT_THAT(values(reduce(own, Reduction::kSum)), ElementsAre(4, 6));
  });
}

TEST(CopyTensorToDevices, GivesEveryRankTheTensorOfTheOneThatHasIt) {
  test::run_ranks(3, [] {
    const PartialState state;
    const at::Tensor owned = at::arange(6, at::kLong).view({2, 3});
    const at::Tensor got =
        state.process_index() == 1 ? copy_tensor_to_devices(owned) : copy_tensor_to_devices();
    EXPECT_TRUE(at::equal(got, owned));
    EXPECT_FALSE(got.is_same(owned));
    wait_for_everyone();
  });
}

TEST(CopyTensorToDevices, WantsOneOwner) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto all_bring_one = [] { (void)copy_tensor_to_devices(at::ones({1})); };
    const auto none_brings_one = [] { (void)copy_tensor_to_devices(); };
    EXPECT_THAT(error_of(all_bring_one).message(), HasSubstr("2 of 2 ranks bring a tensor"));
    EXPECT_THAT(error_of(none_brings_one).message(), HasSubstr("0 of 2 ranks bring a tensor"));
  });
}

TEST(PadAcrossProcesses, PadsAtTheEndOrInFront) {
  test::run_ranks(2, [] {
    const PartialState state;
    // Rank 0 has one element more.
    const at::Tensor input = at::arange(1, state.is_main_process() ? 4 : 3);

    const at::Tensor back = pad_across_processes(input);
    const at::Tensor front = pad_across_processes(input, {.pad_index = -1, .pad_first = true});

    if (state.is_main_process()) {
      EXPECT_TRUE(back.is_same(input));
    } else {
      EXPECT_THAT(values(back), ElementsAre(1, 2, 0));
      EXPECT_THAT(values(front), ElementsAre(-1, 1, 2));
      EXPECT_EQ(back.scalar_type(), at::kLong);
    }
  });
}

TEST(PadAcrossProcesses, LeavesADimensionOutOfRangeAlone) {
  test::run_ranks(2, [] {
    const PartialState state;
    const at::Tensor input = at::ones({2, 2 + state.process_index()});

    EXPECT_TRUE(pad_across_processes(input, {.dim = 2}).is_same(input));
    EXPECT_TRUE(pad_across_processes(input, {.dim = -3}).is_same(input));
    EXPECT_EQ(pad_across_processes(input, {.dim = -1}).size(1), 3);
  });
}

TEST(PadAcrossProcesses, DifferentNumbersOfDimensionsAreAnErrorOnAllRanks) {
  test::run_ranks(2, [] {
    const PartialState state;
    const at::Tensor input = state.is_main_process() ? at::ones({1, 5}) : at::ones({1, 1, 6});

    const Error error = error_of([&] { pad_across_processes(input); });

    EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("Process 0: [1, 5]"), HasSubstr("Process 1: [1, 1, 6]")));
  });
}

// With the table at once, and with a fingerprint first.
class Mismatch : public ::testing::TestWithParam<const char*> {
 protected:
  test::RankGroupOptions options() const {
    return {.env = {{"ACCELERATE_DEBUG_MODE", GetParam()}}};
  }
};

TEST_P(Mismatch, OfShapesIsAnErrorOnAllRanks) {
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        const at::Tensor input = state.is_main_process() ? at::ones({1, 5}) : at::ones({1, 1, 6});
        const std::function<void()> operations[] = {
            [&] { gather(input); }, [&] { reduce(input); }, [&] { broadcast(input); }};

        for (const auto& operation : operations) {
          const Error error = error_of(operation);
          EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
          EXPECT_THAT(
              error.message(),
              AllOf(HasSubstr("Process 0: [1, 5] Float"), HasSubstr("Process 1: [1, 1, 6] Float")));
          EXPECT_THAT(error.remedy(), HasSubstr("pad_across_processes"));
        }
        EXPECT_THAT(values(gather(two_numbers(state))), ElementsAre(1, 2, 3, 4));
      },
      options());
}

// Sizes at which Gloo alone would end the process (the smaller side gets more than it expects), or
// leave one rank waiting.
TEST_P(Mismatch, OfSizesAndTypesIsAnErrorOnAllRanks) {
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        const at::Tensor rows = at::ones({state.is_main_process() ? 4 : 4000});
        const at::Tensor types = at::ones({4}, state.is_main_process() ? at::kFloat : at::kLong);
        const std::function<void(const at::Tensor&)> operations[] = {
            [](const at::Tensor& input) { gather(input); },
            [](const at::Tensor& input) { reduce(input, Reduction::kSum); },
            [](const at::Tensor& input) { broadcast(input); },
            [](const at::Tensor& input) { broadcast(input, 1); }};

        for (const auto& operation : operations) {
          const Error shape = error_of([&] { operation(rows); });
          const Error type = error_of([&] { operation(types); });
          EXPECT_EQ(shape.code(), ErrorCode::kShapeMismatch);
          EXPECT_THAT(
              shape.message(),
              AllOf(HasSubstr("Process 0: [4] Float"), HasSubstr("Process 1: [4000] Float")));
          EXPECT_EQ(type.code(), ErrorCode::kShapeMismatch);
          EXPECT_THAT(type.message(), HasSubstr("Process 1: [4] Long"));
        }
        EXPECT_THAT(values(gather(two_numbers(state))), ElementsAre(1, 2, 3, 4));
      },
      options());
}

TEST_P(Mismatch, OfOperationsNamesThemAll) {
  test::run_ranks(
      2,
      [] {
        const PartialState state;

        const Error error = error_of([&] {
          state.is_main_process() ? (void)gather(at::ones({2})) : (void)reduce(at::ones({2}));
        });

        EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
        EXPECT_THAT(error.message(),
                    AllOf(HasSubstr("Process 0: gather of [2] Float"),
                          HasSubstr("Process 1: reduce of [2] Float")));
      },
      options());
}

TEST(ObjectMismatch, OfTypesAndOperationsIsAnErrorInDebugMode) {
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        const bool is_first = state.is_main_process();
        std::vector<int> numbers{1, 2};
        std::vector<std::string> words{"a"};

        const Error types = error_of(
            [&] { is_first ? broadcast_object_list(numbers) : broadcast_object_list(words); });
        const Error senders = error_of([&] { broadcast_object_list(numbers, is_first ? 0 : 1); });
        const Error operations = error_of(
            [&] { is_first ? (void)gather_object(numbers) : (void)gather(at::ones({2})); });
        const std::vector<int> gathered = gather_object(std::vector<int>(is_first ? 1 : 3, 7));

        for (const Error* error : {&types, &senders, &operations})
          EXPECT_EQ(error->code(), ErrorCode::kShapeMismatch);
        EXPECT_THAT(types.message(),
                    AllOf(HasSubstr("Process 0: objects of type int from process 0"),
                          HasSubstr("Process 1: objects of type std::")));
        EXPECT_THAT(senders.message(), HasSubstr("Process 1: objects of type int from process 1"));
        EXPECT_THAT(operations.message(),
                    AllOf(HasSubstr("Process 0: gather_object of objects of type int"),
                          HasSubstr("Process 1: gather of [2] Float")));
        EXPECT_THAT(gathered, ElementsAre(7, 7, 7, 7));
      },
      {.env = {{"ACCELERATE_DEBUG_MODE", "true"}}});
}

TEST(Mismatches, AreToldInTheWordsOfAccelerate) {
  test::run_ranks(2, [] {
    const PartialState state;

    const Error error = error_of([&] { (void)gather(at::ones({1, 5 + state.process_index()})); });

    EXPECT_EQ(error.message(),
              "Cannot apply desired operation due to shape mismatches. All shapes across devices "
              "must be valid.\n\nOperation: `gather`\nInput shapes:\n"
              "  - Process 0: [1, 5] Float\n  - Process 1: [1, 6] Float");
  });
}

INSTANTIATE_TEST_SUITE_P(Operations, Mismatch, ::testing::Values("", "true"));

TEST(Objects, AreGatheredInRankOrder) {
  test::run_ranks(3, [] {
    const PartialState state;
    // As many strings as the rank's index, one of them long.
    std::vector<std::string> own(static_cast<std::size_t>(state.process_index()),
                                 std::string(100000, 'x'));
    own.push_back(std::to_string(state.process_index()));

    const auto all = gather_object(own);

    ASSERT_EQ(all.size(), 6u);
    EXPECT_EQ(all[0], "0");
    EXPECT_EQ(all[2], "1");
    EXPECT_EQ(all[4].size(), 100000u);
    EXPECT_EQ(all[5], "2");
  });
}

TEST(Objects, OfOneRankReplaceThoseOfTheOthers) {
  test::run_ranks(2, [] {
    const PartialState state;
    std::vector<std::map<std::string, double>> objects(1);
    if (state.process_index() == 1) objects = {{{"loss", 0.5}}, {{"loss", 0.25}}};

    broadcast_object_list(objects, 1);

    ASSERT_EQ(objects.size(), 2u);
    EXPECT_EQ(objects[1].at("loss"), 0.25);
    EXPECT_EQ(broadcast_object(state.process_index() + 40), 40);
  });
}

TEST(Objects, OfDifferentTypesAreAnErrorOnAllRanks) {
  test::run_ranks(2, [] {
    const PartialState state;
    const Error error = error_of([&] {
      if (state.is_main_process()) {
        gather_object(std::vector<int>{1});
      } else {
        gather_object(std::vector<std::string>{"1"});
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::kProtocol);
  });
}

TEST(SplitBetweenProcesses, DividesWhatTheRanksHold) {
  test::run_ranks(2, [] {
    const PartialState state;
    const std::vector<std::string> letters = {"A", "B", "C"};

    const auto part = state.split_between_processes(letters, {.apply_padding = true});

    EXPECT_THAT(gather_object(part), ElementsAre("A", "B", "C", "C"));
    EXPECT_EQ(state.split_between_processes(at::arange(17)).size(0),
              state.is_main_process() ? 9 : 8);
  });
}

}  // namespace
}  // namespace accel::operations_test

// DataLoader on several ranks: rank 0 reading for all, generators that follow rank 0, metrics.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/collate.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/state.h>

#include "tests/support/numbers.h"
#include "tests/support/rank_group.h"

namespace accel::ranks_test {
namespace {

using test::Numbers;
using test::numbers_of;
using test::pass_of;
using ::testing::HasSubstr;
using Batches = test::NumberBatches;

DataLoader<at::Tensor> dispatched(std::int64_t size,
                                  std::int64_t batch_size,
                                  bool split,
                                  bool drop_last) {
  DataLoader loader(Numbers{size}, {.batch_size = batch_size, .drop_last = drop_last});
  return prepare_data_loader(loader, {.split_batches = split, .dispatch_batches = true});
}

// Both ranks' batches, on every rank.
std::vector<Batches> of_all_ranks(const Batches& own) {
  return gather_object(std::vector<Batches>{own});
}

TEST(DispatchedDataLoader, GivesEveryRankItsSliceOfWhatRank0Read) {
  test::run_ranks(2, [] {
    const PartialState state;
    auto loader = dispatched(10, 2, false, false);

    const auto seen = of_all_ranks(pass_of(loader));

    // The last group has 2 rows: one for each rank. Nothing had to be completed.
    EXPECT_EQ(seen[0], (Batches{{0, 1}, {4, 5}, {8}}));
    EXPECT_EQ(seen[1], (Batches{{2, 3}, {6, 7}, {9}}));
    EXPECT_EQ(loader->remainder(), 2);
    EXPECT_EQ(loader.size(), 3);

    auto odd = dispatched(9, 2, false, false);
    const auto completed = of_all_ranks(pass_of(odd));
    EXPECT_EQ(completed[0].back(), (std::vector<std::int64_t>{8}));
    EXPECT_EQ(completed[1].back(), (std::vector<std::int64_t>{0}));
    EXPECT_EQ(odd->remainder(), 1);

    auto dropping = dispatched(9, 2, false, true);
    EXPECT_EQ(of_all_ranks(pass_of(dropping))[1], (Batches{{2, 3}, {6, 7}}));

    auto split = dispatched(9, 4, true, false);
    const auto parts = of_all_ranks(pass_of(split));
    EXPECT_EQ(parts[0], (Batches{{0, 1}, {4, 5}, {8}}));
    EXPECT_EQ(parts[1], (Batches{{2, 3}, {6, 7}, {0}}));
  });
}

TEST(DispatchedDataLoader, IsTheDefaultForAnIterableThatGoesToADevice) {
  test::run_ranks(3, [] {
    const PartialState state;
    const std::vector<std::int64_t> numbers = {0, 1, 2, 3, 4, 5, 6};
    DataLoader loader(numbers, {.batch_size = 2});
    const auto shard = prepare_data_loader(loader, {.device = state.device()});

    const auto seen = of_all_ranks(pass_of(shard));

    EXPECT_TRUE(shard->plan().dispatch_batches);
    EXPECT_EQ(seen[0], (Batches{{0, 1}, {6}}));
    EXPECT_EQ(seen[1], (Batches{{2, 3}, {0}}));
    EXPECT_EQ(seen[2], (Batches{{4, 5}, {1}}));
    EXPECT_EQ(pass_of(skip_first_batches(shard, 1)).size(), 1U);
  });
}

// Numbers, and sentences that name them.
struct Sentences {
  std::size_t size() const { return 5; }
  std::tuple<at::Tensor, std::string> get(std::size_t i) const {
    return {at::full({2}, static_cast<std::int64_t>(i)), "sentence " + std::to_string(i)};
  }
};

TEST(DispatchedDataLoader, GivesEveryRankTheStringsOfItsRows) {
  test::run_ranks(2, [] {
    const PartialState state;
    for (const bool split : {false, true}) {
      DataLoader loader(Sentences{}, {.batch_size = split ? 4 : 2});
      const auto shard =
          prepare_data_loader(loader, {.split_batches = split, .dispatch_batches = true});

      std::vector<std::string> seen;
      for (const auto& [numbers, strings] : shard) {
        ASSERT_EQ(std::ssize(strings), numbers.size(0));
        for (std::int64_t row = 0; row < numbers.size(0); ++row) {
          const auto number = numbers[row][0].item<std::int64_t>();
          EXPECT_EQ(strings[static_cast<std::size_t>(row)], "sentence " + std::to_string(number));
          seen.push_back(strings[static_cast<std::size_t>(row)]);
        }
      }
      EXPECT_EQ(seen,
                state.is_main_process()
                    ? (std::vector<std::string>{"sentence 0", "sentence 1", "sentence 4"})
                    : (std::vector<std::string>{"sentence 2", "sentence 3", "sentence 0"}));
    }
  });
}

// What a collate function of the user's makes of numbers: `others` are not one for each row.
struct Uneven {
  at::Tensor numbers;
  std::vector<std::int64_t> others;
  std::string note;  // of the batch
  static constexpr auto fields() {
    return std::make_tuple(&Uneven::numbers, &Uneven::others, &Uneven::note);
  }
};

TEST(DispatchedDataLoader, RefusesOnEveryRankWhatHasNotAnElementForEachRow) {
  test::run_ranks(2, [] {
    const auto collate = [](const std::vector<std::int64_t>& elements) {
      return Uneven{tensor_of_numbers(elements), {1, 2, 3}, "even"};
    };
    DataLoader loader(Numbers{8}, {.batch_size = 4}, collate);
    const auto shard =
        prepare_data_loader(loader, {.split_batches = true, .dispatch_batches = true});
    try {
      for (const Uneven& batch : shard) (void)batch;
      ADD_FAILURE() << "3 elements were divided like 4 rows";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a list of 3 elements beside 4 rows"));
      EXPECT_THAT(error.what(), HasSubstr("dispatch_batches = false"));
    }
  });
}

TEST(DispatchedDataLoader, RefusesOnEveryRankATensorThatHasOtherRows) {
  test::run_ranks(2, [] {
    const auto collate = [](const std::vector<std::int64_t>& elements) {
      return std::make_pair(tensor_of_numbers(elements), at::full({2, 2}, 1.0));
    };
    DataLoader loader(Numbers{8}, {.batch_size = 4}, collate);
    const auto shard =
        prepare_data_loader(loader, {.split_batches = true, .dispatch_batches = true});
    try {
      for (const auto& batch : shard) (void)batch;
      ADD_FAILURE() << "2 rows were divided like 4";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a tensor of shape [2, 2] beside 4 rows"));
    }
  });
}

TEST(DispatchedDataLoader, YieldsTheBatchesBeforeOneThatCannotBeRead) {
  test::run_ranks(2, [] {
    struct Broken {
      std::int64_t get(std::size_t i) const {
        if (i == 4) throw std::runtime_error("element 4 is unreadable");
        return static_cast<std::int64_t>(i);
      }
      std::size_t size() const { return 8; }
    };
    const PartialState state;
    DataLoader loader(Broken{}, {.batch_size = 1});
    const auto shard = prepare_data_loader(loader, {.dispatch_batches = true});
    Batches seen;
    try {
      for (const at::Tensor& batch : shard) seen.push_back(numbers_of(batch));
      ADD_FAILURE() << "the error was lost";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("element 4 is unreadable"));
    }
    EXPECT_EQ(seen, state.is_main_process() ? (Batches{{0}, {2}}) : (Batches{{1}, {3}}));
  });
}

TEST(DispatchedDataLoader, NamesShapesThatCannotBeJoinedOnEveryRank) {
  test::run_ranks(2, [] {
    struct Growing {
      at::Tensor get(std::size_t i) const { return at::arange(static_cast<std::int64_t>(i) + 1); }
      std::size_t size() const { return 4; }
    };
    const PartialState state;
    DataLoader loader(Growing{}, {.batch_size = 1});
    const auto shard = prepare_data_loader(loader, {.dispatch_batches = true});

    try {
      for (const at::Tensor& batch : shard) (void)batch;
      ADD_FAILURE() << "batches of [1, 1] and [1, 2] were joined";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(),
                state.is_main_process() ? ErrorCode::kShapeMismatch : ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), HasSubstr("dispatch_batches = false"));
      EXPECT_THAT(error.what(), HasSubstr("split_batches = true"));
    }
    EXPECT_FALSE(GradientState().in_dataloader());
  });
}

// Rows of a rank behind a number that tells whose they are.
TEST(DispatchedDataLoader, IsCutByTheFunctionThatWasGiven) {
  test::run_ranks(2, [] {
    const PartialState state;
    DataLoader loader(Numbers{7}, {.batch_size = 2});
    const BatchSlicer<at::Tensor> backwards = [](const at::Tensor& batch,
                                                 std::int64_t begin,
                                                 std::int64_t end,
                                                 std::int64_t process_index,
                                                 std::int64_t num_processes) {
      EXPECT_EQ(process_index, PartialState().process_index());
      EXPECT_EQ(num_processes, 2);
      const std::int64_t rows = batch.size(0);
      return batch.slice(0, rows - end, rows - begin);
    };
    const auto own = prepare_data_loader(loader, {.dispatch_batches = true}, backwards);

    const auto seen = of_all_ranks(pass_of(own));

    // 0 to 3, then 4 to 6 with the first of the two rows that the function gives of the first group.
    EXPECT_EQ(seen[0], (Batches{{2, 3}, {6, 2}}));
    EXPECT_EQ(seen[1], (Batches{{0, 1}, {4, 5}}));
  });
}

TEST(DispatchedDataLoader, OfNothingYieldsNothing) {
  test::run_ranks(2, [] {
    const PartialState state;
    EXPECT_TRUE(pass_of(dispatched(0, 2, false, false)).empty());
    EXPECT_TRUE(pass_of(dispatched(0, 2, true, false)).empty());
  });
}

TEST(EmptyBatch, CannotBeSlicedWithoutATensor) {
  const std::vector<at::Tensor> nothing;
  try {
    (void)detail::slice_batch(nothing, 0, 1);
    FAIL() << "a batch without rows was cut";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(PreparedDataLoader, ShufflesAsRank0Does) {
  test::run_ranks(2, [] {
    const PartialState state;
    // Seeds that differ between the ranks, as after set_seed(seed, device_specific).
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(100 + static_cast<std::uint64_t>(state.process_index()));
    DataLoader loader(Numbers{24}, {.batch_size = 3, .shuffle = true});
    for (const bool seedable : {false, true}) {
      const auto shard = prepare_data_loader(loader, {.use_seedable_sampler = seedable});

      const Batches epochs[] = {pass_of(shard), pass_of(shard)};

      EXPECT_NE(epochs[0], epochs[1]);
      for (const Batches& own : epochs) {
        std::vector<std::int64_t> seen;
        for (const Batches& batches : of_all_ranks(own)) {
          for (const auto& batch : batches) seen.insert(seen.end(), batch.begin(), batch.end());
        }
        std::sort(seen.begin(), seen.end());
        EXPECT_EQ(seen, numbers_of(at::arange(24)));
      }
    }
  });
}

TEST(PreparedDataLoader, GathersEveryElementOnceForMetrics) {
  test::run_ranks(2, [] {
    const PartialState state;
    const GradientState gradients;
    DataLoader loader(Numbers{22}, {.batch_size = 4});
    for (const bool dispatch : {false, true}) {
      const auto shard = prepare_data_loader(loader, {.dispatch_batches = dispatch});

      std::vector<std::int64_t> seen;
      for (const at::Tensor& batch : shard) {
        at::Tensor gathered = gather(batch);
        const auto keep = rows_to_keep(gradients.end_of_dataloader(), gradients.remainder());
        if (keep) gathered = slice_tensors(gathered, 0, *keep);
        for (const std::int64_t number : numbers_of(gathered)) seen.push_back(number);
      }

      EXPECT_EQ(seen, numbers_of(at::arange(22)));
    }
  });
}

TEST(PreparedDataLoader, GoesOnFromRank0sStateOnEveryRank) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto make = [](std::uint64_t seed) {
      at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
      generator.set_current_seed(seed);
      DataLoader loader(Numbers{24}, {.batch_size = 3, .shuffle = true});
      return prepare_data_loader(loader);
    };
    const auto whole = make(5);
    const Batches expected = pass_of(whole);

    const auto interrupted = make(5);
    StateDict saved;
    int batches = 0;
    for (const at::Tensor& batch : interrupted) {
      (void)batch;
      if (++batches < 2) continue;
      saved = interrupted->state_dict();
      break;
    }
    // Rank 1 loads what rank 0 saved.
    saved.tensors = broadcast_object(saved.tensors);
    saved.values = broadcast_object(saved.values);
    const auto resumed = make(77);
    resumed->load_state_dict(saved);

    EXPECT_EQ(pass_of(resumed), Batches(expected.begin() + 2, expected.end()));
    EXPECT_EQ(pass_of(resumed), pass_of(whole));
  });
}

}  // namespace
}  // namespace accel::ranks_test

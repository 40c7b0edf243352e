// The tables of HF Accelerate's sharding, for two ranks and more.

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/batch_samplers.h>
#include <accel/error.h>

namespace accel::batch_samplers_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Batches = std::vector<Indices>;

Batches pass_of(BatchSamplerBase& sampler) {
  const BatchList list = sampler.begin_pass();
  Batches batches;
  for (std::int64_t number = 0; number < list.size(); ++number) batches.push_back(list[number]);
  sampler.end_pass();
  return batches;
}

std::shared_ptr<BatchSampler> range_batches(std::int64_t size, std::int64_t batch, bool drop_last) {
  return std::make_shared<BatchSampler>(
      std::make_shared<SequentialSampler>(size), batch, drop_last);
}

// Batches of any sizes, as a sampler for like lengths would make them.
class FixedBatches : public BatchSamplerBase {
 public:
  explicit FixedBatches(Batches batches, bool drop_last = false)
      : batches_(std::move(batches)), drop_last_(drop_last) {}
  [[nodiscard]] BatchList begin_pass() override { return BatchList(batches_); }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(batches_); }
  [[nodiscard]] bool drop_last() const override { return drop_last_; }

 private:
  Batches batches_;
  bool drop_last_;
};

struct ShardCase {
  std::string name;
  std::int64_t size;
  bool drop_last;
  bool even_batches;
  std::vector<Batches> expected;  // by rank
};

std::ostream& operator<<(std::ostream& out, const ShardCase& shard_case) {
  return out << shard_case.name;
}

void expect_shards(const ShardCase& expected, std::int64_t batch_size, bool split_batches) {
  for (std::int64_t rank = 0; rank < std::ssize(expected.expected); ++rank) {
    BatchSamplerShard shard(range_batches(expected.size, batch_size, expected.drop_last),
                            {.num_processes = std::ssize(expected.expected),
                             .process_index = rank,
                             .split_batches = split_batches,
                             .even_batches = expected.even_batches});
    EXPECT_EQ(pass_of(shard), expected.expected[static_cast<size_t>(rank)]) << "rank " << rank;
  }
}

class WholeBatches : public ::testing::TestWithParam<ShardCase> {};
class SplitBatches : public ::testing::TestWithParam<ShardCase> {};

TEST_P(WholeBatches, GoToTheRanksInTurn) {
  expect_shards(GetParam(), 3, false);
}
TEST_P(SplitBatches, AreCutIntoEqualParts) {
  expect_shards(GetParam(), 4, true);
}

const Batches kRank0Of21 = {{0, 1, 2}, {6, 7, 8}, {12, 13, 14}};
const Batches kRank1Of21 = {{3, 4, 5}, {9, 10, 11}, {15, 16, 17}};

Batches with(Batches batches, const Indices& last) {
  batches.push_back(last);
  return batches;
}

INSTANTIATE_TEST_SUITE_P(
    TwoRanksBatchSize3,
    WholeBatches,
    ::testing::Values(
        ShardCase{"24",
                  24,
                  false,
                  true,
                  {with(kRank0Of21, {18, 19, 20}), with(kRank1Of21, {21, 22, 23})}},
        ShardCase{"24Uneven",
                  24,
                  false,
                  false,
                  {with(kRank0Of21, {18, 19, 20}), with(kRank1Of21, {21, 22, 23})}},
        ShardCase{"24DropLast",
                  24,
                  true,
                  true,
                  {with(kRank0Of21, {18, 19, 20}), with(kRank1Of21, {21, 22, 23})}},
        ShardCase{"21DropLast", 21, true, true, {kRank0Of21, kRank1Of21}},
        ShardCase{"21Even",
                  21,
                  false,
                  true,
                  {with(kRank0Of21, {18, 19, 20}), with(kRank1Of21, {0, 1, 2})}},
        ShardCase{"21Uneven", 21, false, false, {with(kRank0Of21, {18, 19, 20}), kRank1Of21}},
        ShardCase{"22Even",
                  22,
                  false,
                  true,
                  {with(kRank0Of21, {18, 19, 20}), with(kRank1Of21, {21, 0, 1})}},
        ShardCase{
            "22Uneven", 22, false, false, {with(kRank0Of21, {18, 19, 20}), with(kRank1Of21, {21})}},
        ShardCase{"22DropLast", 22, true, false, {kRank0Of21, kRank1Of21}},
        ShardCase{"20Even",
                  20,
                  false,
                  true,
                  {with(kRank0Of21, {18, 19, 0}), with(kRank1Of21, {1, 2, 3})}},
        ShardCase{"20Uneven", 20, false, false, {with(kRank0Of21, {18, 19}), kRank1Of21}},
        ShardCase{"20DropLast", 20, true, true, {kRank0Of21, kRank1Of21}},
        ShardCase{"2Even", 2, false, true, {{{0, 1, 0}}, {{1, 0, 1}}}},
        ShardCase{"2Uneven", 2, false, false, {{{0, 1}}, {}}},
        ShardCase{"2DropLast", 2, true, true, {{}, {}}}),
    [](const auto& info) { return info.param.name; });

const Batches kPart0Of20 = {{0, 1}, {4, 5}, {8, 9}, {12, 13}, {16, 17}};
const Batches kPart1Of20 = {{2, 3}, {6, 7}, {10, 11}, {14, 15}, {18, 19}};

INSTANTIATE_TEST_SUITE_P(
    TwoRanksBatchSize4,
    SplitBatches,
    ::testing::Values(
        ShardCase{"24", 24, false, true, {with(kPart0Of20, {20, 21}), with(kPart1Of20, {22, 23})}},
        ShardCase{
            "22Even", 22, false, true, {with(kPart0Of20, {20, 21}), with(kPart1Of20, {0, 1})}},
        ShardCase{"22Uneven", 22, false, false, {with(kPart0Of20, {20, 21}), kPart1Of20}},
        ShardCase{"22DropLast", 22, true, true, {kPart0Of20, kPart1Of20}},
        ShardCase{"21Even", 21, false, true, {with(kPart0Of20, {20, 0}), with(kPart1Of20, {1, 2})}},
        ShardCase{"21Uneven", 21, false, false, {with(kPart0Of20, {20}), kPart1Of20}},
        ShardCase{"21DropLast", 21, true, true, {kPart0Of20, kPart1Of20}},
        ShardCase{"2Even", 2, false, true, {{{0, 1}}, {{0, 1}}}},
        ShardCase{"2Uneven", 2, false, false, {{{0, 1}}, {}}},
        ShardCase{"2DropLast", 2, true, true, {{}, {}}}),
    [](const auto& info) { return info.param.name; });

const Batches kVarying = {{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9, 10, 11}, {12, 13}};

Batches shard_of_varying(const Batches& batches,
                         BatchShardOptions options,
                         bool drop_last = false) {
  BatchSamplerShard shard(std::make_shared<FixedBatches>(batches, drop_last), options);
  return pass_of(shard);
}

TEST(VaryingBatches, AreGivenOutAsFarAsTheyReachWhenNotEven) {
  const Batches first =
      shard_of_varying(kVarying, {.num_processes = 2, .process_index = 0, .even_batches = false});
  const Batches second =
      shard_of_varying(kVarying, {.num_processes = 2, .process_index = 1, .even_batches = false});

  EXPECT_EQ(first, (Batches{{0, 1, 2}, {5, 6, 7, 8}, {12, 13}}));
  EXPECT_EQ(second, (Batches{{3, 4}, {9, 10, 11}}));
}

TEST(VaryingBatches, AreCompletedWithTheFirstBatchWhenEven) {
  EXPECT_EQ(shard_of_varying(kVarying, {.num_processes = 2, .process_index = 1}),
            (Batches{{3, 4}, {9, 10, 11}, {0, 1, 2}}));
}

TEST(VaryingBatches, GiveASingleBatchToEveryRank) {
  for (std::int64_t num_processes : {2, 3}) {
    for (std::int64_t rank = 0; rank < num_processes; ++rank) {
      EXPECT_EQ(shard_of_varying({{7, 8}}, {.num_processes = num_processes, .process_index = rank}),
                (Batches{{7, 8}}));
    }
  }
}

TEST(VaryingBatches, LoseTheIncompleteRoundWithDropLast) {
  EXPECT_EQ(shard_of_varying(kVarying, {.num_processes = 2, .process_index = 0}, true),
            (Batches{{0, 1, 2}, {5, 6, 7, 8}}));
}

struct LengthCase {
  std::int64_t size;
  std::int64_t batch_size;
  bool split_batches;
  bool drop_last;
  bool even_batches;
  std::vector<std::int64_t> lengths;  // by rank
};

class ShardLength : public ::testing::TestWithParam<LengthCase> {};

TEST_P(ShardLength, IsTheAnnouncedOne) {
  const LengthCase& expected = GetParam();
  for (std::int64_t rank = 0; rank < std::ssize(expected.lengths); ++rank) {
    BatchSamplerShard shard(range_batches(expected.size, expected.batch_size, expected.drop_last),
                            {.num_processes = std::ssize(expected.lengths),
                             .process_index = rank,
                             .split_batches = expected.split_batches,
                             .even_batches = expected.even_batches});
    EXPECT_EQ(shard.size(), expected.lengths[static_cast<size_t>(rank)]) << "rank " << rank;
    EXPECT_EQ(shard.total_length(),
              range_batches(expected.size, expected.batch_size, expected.drop_last)->size());
  }
}

INSTANTIATE_TEST_SUITE_P(Contract,
                         ShardLength,
                         ::testing::Values(LengthCase{24, 3, false, false, true, {4, 4}},
                                           LengthCase{21, 3, false, true, true, {3, 3}},
                                           LengthCase{21, 3, false, false, true, {4, 4}},
                                           LengthCase{21, 3, false, false, false, {4, 3}},
                                           LengthCase{21, 4, true, false, true, {6, 6}},
                                           LengthCase{21, 4, true, true, true, {5, 5}},
                                           LengthCase{5, 1, false, false, false, {2, 2, 1}}));

// The check that HF Accelerate runs across ranks: how many elements the batches of each rank hold.
TEST(EvenBatches, GiveEveryRankAsManyElements) {
  const auto sizes = [](std::int64_t size, std::int64_t batch_size, bool even, std::int64_t rank) {
    BatchSamplerShard shard(range_batches(size, batch_size, false),
                            {.num_processes = 2, .process_index = rank, .even_batches = even});
    std::vector<size_t> result;
    for (const Indices& batch : pass_of(shard)) result.push_back(batch.size());
    return result;
  };
  using Sizes = std::vector<size_t>;

  EXPECT_EQ(sizes(3, 1, true, 0), (Sizes{1, 1}));
  EXPECT_EQ(sizes(3, 1, true, 1), (Sizes{1, 1}));
  EXPECT_EQ(sizes(3, 1, false, 0), (Sizes{1, 1}));
  EXPECT_EQ(sizes(3, 1, false, 1), (Sizes{1}));
  EXPECT_EQ(sizes(7, 2, true, 0), (Sizes{2, 2}));
  EXPECT_EQ(sizes(7, 2, true, 1), (Sizes{2, 2}));
  EXPECT_EQ(sizes(7, 2, false, 0), (Sizes{2, 2}));
  EXPECT_EQ(sizes(7, 2, false, 1), (Sizes{2, 1}));
}

TEST(BatchSamplerShard, RefusesABatchSizeThatDoesNotDivide) {
  try {
    BatchSamplerShard(range_batches(9, 3, false), {.num_processes = 2, .split_batches = true});
    FAIL() << "3 over 2 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataSharding);
    EXPECT_THAT(error.message(), HasSubstr("the batch size (3) must be a round multiple"));
    EXPECT_THAT(error.message(), HasSubstr("number of processes (2)"));
    EXPECT_THAT(error.remedy(), HasSubstr("set batch_size to 2 or 4"));
  }
}

TEST(BatchSamplerShard, RefusesToSplitBatchesWithoutASize) {
  try {
    BatchSamplerShard(std::make_shared<FixedBatches>(kVarying),
                      {.num_processes = 2, .split_batches = true});
    FAIL() << "batches of varying size were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataSharding);
    EXPECT_THAT(error.message(), HasSubstr("no batch_size"));
  }
}

TEST(BatchSamplerShard, RefusesARankOutsideTheGroup) {
  EXPECT_THROW(
      BatchSamplerShard(range_batches(9, 3, false), {.num_processes = 2, .process_index = 2}),
      Error);
}

TEST(BatchSampler, RefusesABatchSizeOfZero) {
  EXPECT_THROW(range_batches(9, 0, false), Error);
}

TEST(SkipBatchSampler, LeavesTheFirstBatchesOut) {
  SkipBatchSampler skip(range_batches(16, 4, false), 2);

  EXPECT_EQ(pass_of(skip), (Batches{{8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(skip.size(), 2);
  EXPECT_EQ(skip.total_length(), 4);
}

TEST(SkipBatchSampler, MaySkipMoreThanThereIs) {
  SkipBatchSampler skip(range_batches(4, 4, false), 3);

  EXPECT_EQ(pass_of(skip), Batches{});
  EXPECT_EQ(skip.size(), 0);
}

}  // namespace
}  // namespace accel::batch_samplers_test

// What all ranks of a group are told when one of them calls something else.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_calls_test {
namespace {

using test::bytes_of;
using test::sources_of;
using test::targets_of;
using ::testing::HasSubstr;
using Ranks = test::ShmRanks;

// What each of three ranks gets when rank 2 calls another thing than the others.
std::vector<Result<void>> outcomes_of(const std::function<Result<void>(ShmGroup&, bool)>& call) {
  std::vector<Result<void>> outcomes(3);
  Ranks(3, 1).run([&](ShmGroup& group) {
    outcomes[static_cast<std::size_t>(group.rank())] = call(group, group.rank() == 2);
  });
  return outcomes;
}

void expect_all_name(const std::vector<Result<void>>& outcomes,
                     const std::string& one,
                     const std::string& other) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    ASSERT_FALSE(outcomes[rank]) << "rank " << rank << " saw nothing";
    EXPECT_EQ(outcomes[rank].error().code(), ErrorCode::kShapeMismatch) << rank;
    EXPECT_THAT(outcomes[rank].error().message(), HasSubstr(one)) << rank;
    EXPECT_THAT(outcomes[rank].error().message(), HasSubstr(other)) << rank;
  }
}

TEST(ShmCalls, AnotherRootIsAnErrorOnAllRanksThatNamesBothCalls) {
  const auto broadcast = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    return group.broadcast(bytes_of(values), 16, is_other ? 2 : 0);
  });
  expect_all_name(broadcast, "broadcast of 16 bytes, root 0", "broadcast of 16 bytes, root 2");

  const auto reduce = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    std::byte* const bytes = bytes_of(values);
    return group.reduce(bytes, bytes, 4, DataType::kFloat32, ReduceOp::kSum, is_other ? 2 : 0);
  });
  expect_all_name(reduce, "sum of float32, root 0", "sum of float32, root 2");

  const auto gather = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    std::vector<std::vector<float>> room(3, values);
    const std::vector<std::byte*> out = {bytes_of(room[0]), bytes_of(room[1]), bytes_of(room[2])};
    return group.gather(bytes_of(values), out, 16, is_other ? 2 : 0);
  });
  expect_all_name(gather, "gather of 16 bytes, root 0", "gather of 16 bytes, root 2");

  const auto scatter = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    const std::vector<const std::byte*> in(3, bytes_of(values));
    std::vector<float> out(4);
    return group.scatter(in, bytes_of(out), 16, is_other ? 2 : 0);
  });
  expect_all_name(scatter, "scatter of 16 bytes, root 0", "scatter of 16 bytes, root 2");
}

TEST(ShmCalls, AnotherTypeOrOperationOrCollectiveIsAnErrorOnAllRanks) {
  const auto type = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    return group.broadcast(bytes_of(values), 16, 0, is_other ? "Int" : "Float");
  });
  expect_all_name(type, "16 bytes of type Float, root 0", "16 bytes of type Int, root 0");

  const auto op = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    std::byte* const bytes = bytes_of(values);
    const ReduceOp op = is_other ? ReduceOp::kMax : ReduceOp::kSum;
    return group.all_reduce(bytes, bytes, 4, DataType::kFloat32, op);
  });
  expect_all_name(op, "sum of float32", "max of float32");

  const auto kind = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(4);
    return is_other ? group.barrier() : group.broadcast(bytes_of(values), 16, 0);
  });
  expect_all_name(kind, "broadcast of 16 bytes, root 0", "barrier of 0 bytes");
}

// The root of the others has its data in place already: nobody but rank 2 has anything to wait for.
TEST(ShmCalls, AnotherSizeOfManyStepsIsAnErrorOnAllRanks) {
  const auto outcomes = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<float> values(5'000);
    return group.broadcast(bytes_of(values), is_other ? 16'000 : 20'000, 0);
  });
  expect_all_name(outcomes, "broadcast of 20000 bytes", "broadcast of 16000 bytes");
}

TEST(ShmCalls, AnotherSizeOfAPieceIsTheSameErrorOnAllRanks) {
  const auto outcomes = outcomes_of([](ShmGroup& group, bool is_other) {
    std::vector<std::vector<float>> in(3, std::vector<float>(4));
    std::vector<std::vector<float>> out = in;
    if (is_other) out[1].resize(5);
    return group.all_to_all(sources_of(in), targets_of(out));
  });
  expect_all_name(outcomes, "rank 2 expects 20 bytes of rank 1", "which sends 16");
}

}  // namespace
}  // namespace accel::shm::shm_calls_test

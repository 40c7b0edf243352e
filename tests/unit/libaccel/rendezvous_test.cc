// Ranks that the environment does not know, and where they meet.

#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/operations.h>
#include <accel/rendezvous.h>
#include <accel/state.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::rendezvous_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The sum of 10^rank over the ranks of a group: who is in it.
std::int64_t members() {
  std::int64_t value = 1;
  for (int rank = 0; rank < test::rank_of_this_process(); ++rank) value *= 10;
  return reduce(at::full({}, value, at::kLong), Reduction::kSum).item<std::int64_t>();
}

PartialState join(const std::string& address, int rank, int size) {
  return PartialState(
      {.init_process_group = {
           .identity = identity_at(
               address,
               {.rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size})}});
}

// Ranks 0 and 1 have been in one group more than 2 and 3, as those of a communicator may have been.
TEST(Rendezvous, JoinsRanksInAnotherOrderThanTheirLauncherWhateverGroupsTheyWereInBefore) {
  test::run_ranks(4, [] {
    const int rank = test::rank_of_this_process();
    std::optional<Rendezvous> own;
    std::vector<std::string> addresses;
    {
      PartialState launched;
      own.emplace("127.0.0.1");
      addresses = gather_object(std::vector<std::string>{own->address()});
      PartialState::reset();
    }
    if (rank < 2) {
      join(addresses[1], 1 - rank, 2);
      EXPECT_EQ(members(), 11);
      PartialState::reset();
    }
    const PartialState state = join(addresses[3], 3 - rank, 4);
    EXPECT_EQ(state.process_index(), 3 - rank);
    EXPECT_EQ(state.num_processes(), 4);
    EXPECT_EQ(state.backend(), "shm");
    EXPECT_EQ(members(), 1111);
    // The same group again, at the same place.
    state.wait_for_everyone();
    PartialState::reset();
    join(addresses[3], 3 - rank, 4);
    EXPECT_EQ(members(), 1111);
    PartialState().wait_for_everyone();
  });
}

TEST(Rendezvous, RefusesASecondGroupWhileThereIsOne) {
  const Rendezvous rendezvous("127.0.0.1");
  join(rendezvous.address(), 0, 1);
  join(rendezvous.address(), 0, 1);  // the same

  const auto error = test::error_of([&] { join("127.0.0.1:1/other", 0, 1); });

  PartialState::reset();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("another group"));
}

TEST(Rendezvous, OfOneRankNeedsNoAddressAndNoGroup) {
  const PartialState state({.init_process_group = {.identity = identity_at("", {})}});

  EXPECT_EQ(state.backend(), "");
  EXPECT_EQ(state.num_processes(), 1);
  PartialState::reset();
}

TEST(Rendezvous, ListensWhereItIsTold) {
  const Rendezvous here("127.0.0.1");
  EXPECT_THAT(here.address(), StartsWith("127.0.0.1:"));

  const auto elsewhere =
      test::error_of([] { Rendezvous("192.0.2.1"); });  // of no machine: RFC 5737
  EXPECT_EQ(elsewhere.code(), ErrorCode::kInvalidArgument);
}

TEST(IdentityAt, ReadsHostsOfEveryKind) {
  const RankPlacement placement{.rank = 2, .world_size = 4, .local_rank = 0, .local_world_size = 2};

  const WorkerIdentity named = identity_at("node-7.cluster:41237/5f0c", placement);
  EXPECT_EQ(named.master_addr, "node-7.cluster");
  EXPECT_EQ(named.master_port, 41237);
  EXPECT_EQ(named.run_id, "5f0c");
  EXPECT_EQ(named.global_rank, 2);
  EXPECT_EQ(named.local_world_size, 2);
  EXPECT_TRUE(named.use_agent_store);
  EXPECT_EQ(identity_at("fe80::1:500/x", placement).master_addr, "fe80::1");
}

TEST(IdentityAt, RefusesWhatIsNoAddress) {
  for (const char* address : {"",
                              "node",
                              "node:1",
                              "node/x",
                              ":1/x",
                              "node:0/x",
                              "node:65536/x",
                              "node:1/",
                              "node:one/x"}) {
    const auto error = test::error_of([&] { (void)identity_at(address, {.world_size = 2}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace accel::rendezvous_test

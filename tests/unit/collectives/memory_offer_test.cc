#include "libaccel/engine/shm/memory/memory_offer.h"

#include <csignal>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libaccel/engine/shm/memory/group_memory.h"
#include "libaccel/engine/shm/memory/node_identity.h"

namespace accel::shm::memory_offer_test {
namespace {

using ::testing::HasSubstr;

const GroupShape kShape = {.world_size = 2, .slot_bytes = 4096};

TEST(MemoryOffer, AnotherProcessOpensTheSameMemory) {
  const UniqueFd memory = or_throw(GroupMemory::create(kShape));
  const std::string text = to_text(or_throw(offer_memory(memory.get())));
  const GroupMemory ours = or_throw(GroupMemory::map(memory.get(), kShape));

  const pid_t child = ::fork();
  if (child == 0) {
    const auto offer = parse_memory_offer(text);
    const auto opened = open_offer(*offer);
    if (!opened) ::_exit(1);
    const auto theirs = GroupMemory::map(opened->get(), kShape);
    if (!theirs) ::_exit(2);
    *theirs->slot(1, 0) = std::byte{42};
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);

  EXPECT_EQ(status, 0);
  EXPECT_EQ(*ours.slot(1, 0), std::byte{42});
}

TEST(MemoryOffer, ADescriptorThatMeansSomethingElseByNowIsRefused) {
  UniqueFd memory = or_throw(GroupMemory::create(kShape));
  const MemoryOffer offer = or_throw(offer_memory(memory.get()));
  const UniqueFd other = or_throw(GroupMemory::create(kShape));
  ASSERT_EQ(::dup2(other.get(), memory.get()), memory.get());

  const auto opened = open_offer(offer);

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(opened.error().message(), HasSubstr("does not hold the memory any more"));
}

TEST(MemoryOffer, APidThatMeansAnotherProcessByNowIsRefused) {
  const UniqueFd memory = or_throw(GroupMemory::create(kShape));
  MemoryOffer offer = or_throw(offer_memory(memory.get()));
  ++offer.start_time;

  EXPECT_FALSE(open_offer(offer));
}

TEST(MemoryOffer, AProcessThatIsGoneIsLost) {
  const UniqueFd memory = or_throw(GroupMemory::create(kShape));
  MemoryOffer offer = or_throw(offer_memory(memory.get()));
  offer.pid = ::fork();
  if (offer.pid == 0) ::_exit(0);
  ::waitpid(offer.pid, nullptr, 0);

  const auto opened = open_offer(offer);

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kPeerLost);
}

TEST(MemoryOffer, WhatIsNoMemoryOrCanBeCutOffIsRefused) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd pipe(ends[0]);
  const UniqueFd other_end(ends[1]);
  const auto of_pipe = open_offer(or_throw(offer_memory(pipe.get())));
  ASSERT_FALSE(of_pipe);
  EXPECT_EQ(of_pipe.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(of_pipe.error().message(), HasSubstr("is no memory"));

  const UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto of_unsealed = open_offer(or_throw(offer_memory(unsealed.get())));
  ASSERT_FALSE(of_unsealed);
  EXPECT_THAT(of_unsealed.error().message(), HasSubstr("is no memory whose size is sealed"));
}

TEST(GroupMemoryTest, PagesThatCannotBeHadAreAnErrorAndNoSignal) {
  const UniqueFd memory = or_throw(GroupMemory::create(kShape));
  const GroupMemory ours = or_throw(GroupMemory::map(memory.get(), kShape));
  EXPECT_TRUE(ours.reserve(0));
  EXPECT_EQ(*ours.slot(1, 0), std::byte{0}) << "what is taken is what was there";

  // Memory that is shorter than it is mapped is what a full one looks like: a touch would be SIGBUS.
  const UniqueFd shorter(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(shorter.get(), static_cast<off_t>(GroupMemory::size_of(kShape))), 0);
  const GroupMemory cut = or_throw(GroupMemory::map(shorter.get(), kShape));
  ASSERT_EQ(::ftruncate(shorter.get(), 4096), 0);
  const auto reserved = cut.reserve(0);
  ASSERT_FALSE(reserved);
  EXPECT_EQ(reserved.error().code(), ErrorCode::kOutOfMemory);
}

TEST(MemoryOffer, TextOfAnotherShapeOffersNothing) {
  const MemoryOffer offer = {.pid = 7, .start_time = 8, .descriptor = 9, .device = 10, .inode = 11};
  EXPECT_EQ(or_throw(parse_memory_offer(to_text(offer))), offer);
  for (const char* text : {"", "7 8 9 10", "7 8 9 10 11 12", "-7 8 9 10 11", "7 8 -9 10 11", "a"})
    EXPECT_FALSE(parse_memory_offer(text)) << text;
}

TEST(NodeIdentityTest, OfOneProcessIsTheSameAndSaysWhatDiffers) {
  const NodeIdentity here = or_throw(read_node_identity());
  EXPECT_EQ(or_throw(parse_node_identity(to_text(here))), here);
  EXPECT_EQ(difference(here, here), "");
  NodeIdentity other = here;
  other.user_namespace = "user:[1]";
  EXPECT_EQ(difference(here, other), "another user namespace");
  other.pid_namespace = "pid:[1]";
  EXPECT_EQ(difference(here, other), "another pid namespace");
  other.boot_id = "x";
  EXPECT_EQ(difference(here, other), "another kernel");
  EXPECT_FALSE(parse_node_identity("one/two"));
}

}  // namespace
}  // namespace accel::shm::memory_offer_test

#include "agent/logs/log_reader.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::log_reader_test {
namespace {

class LogReaderTest : public testing::Test {
 protected:
  LogReader::Source source() {
    return {.folder = folder_.path().string(),
            .job_id = "j",
            .owner = ::geteuid(),
            .local_ranks = {0},
            .err = false};
  }
  test::ScratchFolder folder_;
};

TEST_F(LogReaderTest, ReadsGenerationAfterGeneration) {
  folder_.write("j/attempt_0/0/stdout.log", "first");
  folder_.write("j/attempt_1/0/stdout.log", "second");
  LogReader reader(source());
  EXPECT_EQ(reader.next(1)->data(), "first");
  EXPECT_EQ(reader.next(1)->data(), "second");
  EXPECT_FALSE(reader.next(1));
}

TEST_F(LogReaderTest, EachStreamGoesOnAtItsOwnPlace) {
  folder_.write("j/attempt_0/0/stdout.log", "old");
  folder_.write("j/attempt_1/0/stdout.log", "0123456789");
  folder_.write("j/attempt_0/0/stderr.log", "abc");
  auto from = source();
  from.err = true;
  v1::LogPlace place;
  place.set_stream(v1::STREAM_OUT);
  place.set_generation(1);
  place.set_offset(7);
  from.resume.push_back(place);
  LogReader reader(std::move(from));

  const auto first = reader.next(1);
  const auto second = reader.next(1);

  EXPECT_EQ(first->data(), "789");
  EXPECT_EQ(first->generation(), 1U);
  EXPECT_EQ(first->offset(), 7U);
  EXPECT_EQ(second->data(), "abc");
  EXPECT_FALSE(reader.next(1));
}

TEST(LocalRanks, AreThoseOfThisNodeEachOnce) {
  const google::protobuf::RepeatedField<std::uint32_t> none;
  const std::vector<std::uint32_t> some_ranks = {5, 4, 5, 3, 900, 4'294'967'295};
  const google::protobuf::RepeatedField<std::uint32_t> some(some_ranks.begin(), some_ranks.end());
  EXPECT_THAT(local_ranks(none, 4, 3), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(local_ranks(some, 4, 3), testing::ElementsAre(0, 1));
  EXPECT_THAT(local_ranks(some, 0, 4), testing::ElementsAre(3));
  EXPECT_THAT(local_ranks(some, 1000, 4), testing::ElementsAre());
}

TEST_F(LogReaderTest, NeitherLinksNorSecondNamesNorOthersFilesAreRead) {
  const std::string secret = folder_.write("secret", "s");
  folder_.write("j/attempt_0/0/keep", "");
  const std::string log = folder_.file("j/attempt_0/0/stdout.log");
  ASSERT_EQ(::symlink(secret.c_str(), log.c_str()), 0);
  EXPECT_FALSE(LogReader(source()).next(0));
  ASSERT_EQ(::unlink(log.c_str()), 0);
  ASSERT_EQ(::link(secret.c_str(), log.c_str()), 0);
  EXPECT_FALSE(LogReader(source()).next(0));
  ASSERT_EQ(::unlink(secret.c_str()), 0);
  EXPECT_TRUE(LogReader(source()).next(0));
  auto of_somebody_else = source();
  of_somebody_else.owner = ::geteuid() + 1;
  EXPECT_FALSE(LogReader(std::move(of_somebody_else)).next(0));
}

TEST_F(LogReaderTest, Fault26ReadsOnOverRotatedFiles) {
  folder_.write("j/attempt_0/0/stdout.log.0", "0123");
  folder_.write("j/attempt_0/0/stdout.log.4", "4567");
  folder_.write("j/attempt_0/0/stdout.log", "89");
  LogReader reader(source());
  EXPECT_EQ(reader.next(0)->data(), "0123");
  const auto second = reader.next(0);
  EXPECT_EQ(second->data(), "4567");
  EXPECT_EQ(second->offset(), 4U);
  EXPECT_EQ(reader.next(0)->data(), "89");
  EXPECT_FALSE(reader.next(0));

  // Under its eyes: the newest is written on, rotated, and followed by two more.
  folder_.write("j/attempt_0/0/stdout.log", "89ab");
  const auto log = folder_.file("j/attempt_0/0/stdout.log");
  std::filesystem::rename(log, log + ".8");
  folder_.write("j/attempt_0/0/stdout.log.12", "cdef");
  EXPECT_EQ(reader.next(0)->data(), "ab");
  EXPECT_EQ(reader.next(0)->data(), "cdef");
  EXPECT_FALSE(reader.next(0)) << "no newest file yet";
  folder_.write("j/attempt_0/0/stdout.log", "g");
  const auto last = reader.next(0);
  EXPECT_EQ(last->data(), "g");
  EXPECT_EQ(last->offset(), 16U);
  EXPECT_EQ(last->dropped(), 0U);
}

TEST_F(LogReaderTest, Fault26AResumedReaderFindsItsByte) {
  folder_.write("j/attempt_0/0/stdout.log.0", "0123");
  folder_.write("j/attempt_0/0/stdout.log.4", "456789");  // could not be rotated in time
  folder_.write("j/attempt_0/0/stdout.log", "abc");
  for (const auto& [from, data] : {std::pair(3, "3"), {4, "456789"}, {9, "9"}, {10, "abc"}}) {
    auto place = source();
    place.from = static_cast<std::uint64_t>(from);
    EXPECT_EQ(LogReader(std::move(place)).next(0)->data(), data);
  }
}

TEST_F(LogReaderTest, Fault26WhatWasDeletedBeforeItWasReadIsCounted) {
  folder_.write("j/attempt_0/0/stdout.log.8", "8901");
  folder_.write("j/attempt_0/0/stdout.log", "23");
  auto place = source();
  place.from = 3;
  LogReader reader(std::move(place));

  const auto first = reader.next(0);
  EXPECT_EQ(first->dropped(), 5U);
  EXPECT_EQ(first->offset(), 8U);
  EXPECT_EQ(first->data(), "");
  EXPECT_EQ(reader.next(0)->data(), "8901");
  EXPECT_EQ(reader.next(0)->data(), "23");
  EXPECT_FALSE(reader.next(0));
}

TEST_F(LogReaderTest, Fault24AFileThatWasDeletedAndMadeAnewIsReadFromItsBeginning) {
  folder_.write("j/attempt_0/0/stdout.log.0", "0123");
  folder_.write("j/attempt_0/0/stdout.log", "4567");
  LogReader reader(source());
  EXPECT_EQ(reader.next(0)->data(), "0123");
  EXPECT_EQ(reader.next(0)->data(), "4567");
  ASSERT_TRUE(std::filesystem::remove(folder_.file("j/attempt_0/0/stdout.log")));
  EXPECT_FALSE(reader.next(0));
  folder_.write("j/attempt_0/0/stdout.log", "ab");

  const auto next = reader.next(0);

  EXPECT_EQ(next->data(), "ab");
  EXPECT_EQ(next->offset(), 4U);
}

TEST_F(LogReaderTest, AFifoInPlaceOfAFileDoesNotHoldTheReaderUp) {
  folder_.write("j/attempt_0/0/keep", "");
  ASSERT_EQ(::mkfifo(folder_.file("j/attempt_0/0/stdout.log").c_str(), 0600), 0);
  EXPECT_FALSE(LogReader(source()).next(0));
}

}  // namespace
}  // namespace accel::agent::log_reader_test

// Routes: which bytes of which stream arrive where, and that none is lost.

#include "runtime/supervisor/logs/log_router.h"

#include <sstream>

#include "tests/support/log_router_fixture.h"

namespace accel::supervisor::log_router_test {
namespace {

using ::testing::EndsWith;
using ::testing::IsEmpty;

TEST_F(LogRouterTest, LinesOfAllRanksReachTheConsoleUnchanged) {
  out_.read_along();
  err_.read_along();
  start(2);
  {
    const WorkerStdio zero = open(0);
    const WorkerStdio one = open(1);
    say(zero.out, "to out\n");
    say(one.err, "to err\xff");
  }
  drain(0);
  drain(1);
  EXPECT_TRUE(close());

  EXPECT_EQ(out_.all(), "to out\n");
  EXPECT_EQ(err_.all(), "to err\xff");
  EXPECT_EQ(router_->tail(0).out, "to out\n");
  EXPECT_EQ(router_->tail(1).err, "to err\xff");
  EXPECT_THAT(router_->notices(), IsEmpty());
}

TEST_F(LogRouterTest, FilteredLinesOfAllRanksAreInOneFileOfTheirGeneration) {
  options_.log.dir = folder_.path();
  options_.log.out_filters = {"apple"};
  worker_.tee = Streams::kAll;
  out_.read_along();
  err_.read_along();
  start(2);
  for (const int generation : {0, 1}) {
    {
      const WorkerStdio zero = open(0, generation);
      const WorkerStdio one = open(1, generation);
      say(zero.out, "an apple\nnothing\n");
      say(one.out, "half an app");
      say(one.err, "apple on stderr\n");
      say(one.out, "le\n");
    }
    drain(0);
    drain(1);
  }
  EXPECT_TRUE(close());

  for (const int generation : {0, 1}) {
    const std::string lines =
        content_of(LogLayout(folder_.path(), "job").filtered_file(generation, Stream::kOut));
    const std::string zero = "[default0]:an apple\n";
    const std::string one = "[default1]:half an apple\n";
    EXPECT_TRUE(lines == zero + one || lines == one + zero) << lines;
    EXPECT_FALSE(std::filesystem::exists(
        LogLayout(folder_.path(), "job").filtered_file(generation, Stream::kErr)));
  }
  EXPECT_EQ(content_of(log_of(0, Stream::kOut)), "an apple\nnothing\n");
}

TEST_F(LogRouterTest, APromptAppearsWithoutANewline) {
  out_.read_along();
  start(1);
  const WorkerStdio worker = open(0);

  say(worker.out, "name? ");

  EXPECT_TRUE(wait_for([this] { return out_.so_far() == "name? "; }));
}

TEST_F(LogRouterTest, LinesOfEightWritersAreNeverMixed) {
  constexpr int kRanks = 8;
  constexpr int kLines = 2'000;
  options_.line_patience = kGenerous;  // however long a writer waits for a processor
  out_.read_along();
  start(kRanks);
  std::vector<std::thread> writers;
  for (int rank = 0; rank < kRanks; ++rank) {
    writers.emplace_back([stdio = open(rank), rank] {
      for (int line = 0; line < kLines; ++line) {
        const std::string name = "rank " + std::to_string(rank) + " line " + std::to_string(line);
        say(stdio.out, name);  // in two pieces
        say(stdio.out, " end\n");
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (int rank = 0; rank < kRanks; ++rank) drain(rank);
  EXPECT_TRUE(close());

  std::istringstream lines(out_.all());
  std::vector<int> next(kRanks, 0);
  int rank = 0;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_EQ(std::sscanf(line.c_str(), "rank %d line %d end", &rank, &number), 2) << line;
    ASSERT_THAT(line, EndsWith(" end"));
    ASSERT_EQ(number, next.at(static_cast<std::size_t>(rank))++) << line;
  }
  EXPECT_THAT(next, ::testing::Each(kLines));
}

TEST_F(LogRouterTest, FilesAreEqualToTheByte) {
  options_.log.dir = folder_.path();
  worker_.tee = Streams::kAll;
  out_.read_along();
  err_.read_along();
  start(2);
  const std::string bytes[2] = {random_bytes(5'000'001, 1), random_bytes(3'000'003, 2)};
  std::vector<std::thread> writers;
  for (int rank = 0; rank < 2; ++rank) {
    writers.emplace_back([stdio = open(rank), &bytes, rank] { say(stdio.out, bytes[rank]); });
  }
  for (std::thread& writer : writers) writer.join();
  drain(0);
  drain(1);
  EXPECT_TRUE(close());

  EXPECT_EQ(content_of(log_of(0, Stream::kOut)), bytes[0]);
  EXPECT_EQ(content_of(log_of(1, Stream::kOut)), bytes[1]);
  EXPECT_EQ(content_of(log_of(1, Stream::kErr)), "");
  EXPECT_EQ(out_.all().size(), bytes[0].size() + bytes[1].size());
  EXPECT_THAT(router_->notices(), IsEmpty());
}

// A line without end, bytes that are no text, characters cut in two, a progress bar.
TEST_F(LogRouterTest, Fault23WhateverTheBytesAreFileAndConsoleHaveThemUnchanged) {
  options_.log.dir = folder_.path();
  worker_.tee = Streams::kAll;
  out_.read_along();
  start(1);
  std::string bytes = std::string(16 << 20, 'x') + std::string("\n\0\xff\xfe\x1b[2J", 8);
  for (int i = 0; i < 50'000; ++i) bytes += "\r" + std::to_string(i) + " %\xe2\x96\x88";
  bytes += "\xe2\x96";  // and ends in the middle of a character
  {
    const WorkerStdio worker = open(0);
    say(worker.out, bytes);
  }
  drain(0);
  EXPECT_TRUE(close());

  EXPECT_TRUE(content_of(log_of(0, Stream::kOut)) == bytes);
  EXPECT_TRUE(out_.all() == bytes);
  EXPECT_EQ(router_->tail(0).out, bytes.substr(bytes.size() - 64 * 1024));
}

TEST_F(LogRouterTest, ARedirectedFloodIsEqualToTheByteAndKeepsItsTail) {
  options_.log.dir = folder_.path();
  worker_.redirect = Streams::kAll;
  start(1);
  const std::string bytes = random_bytes(9'000'000, 3);
  {
    const WorkerStdio worker = open(0);
    say(worker.err, bytes);
  }
  drain(0);

  EXPECT_EQ(router_->tail(0).err, bytes.substr(bytes.size() - 64 * 1024));
  EXPECT_TRUE(close());
  EXPECT_EQ(content_of(log_of(0, Stream::kErr)), bytes);
  EXPECT_EQ(err_.all(), "");
}

TEST_F(LogRouterTest, Fault26AFastWriterLosesNoByteOverRotations) {
  options_.log.dir = folder_.path();
  options_.log.rotation = {.bytes = 64 * 1024, .keep = 1000};
  worker_.redirect = Streams::kOut;
  worker_.tee = Streams::kErr;
  err_.read_along();
  start(1);
  const std::string out = random_bytes(8'000'003, 5);
  const std::string err = random_bytes(1'000'003, 6);
  {
    const WorkerStdio worker = open(0);
    std::thread other([&] { say(worker.err, err); });
    say(worker.out, out);
    other.join();
  }
  drain(0);
  EXPECT_TRUE(close());

  const auto whole = [this](Stream stream) {
    std::string bytes;
    const std::string path = log_of(0, stream).string();
    while (std::filesystem::exists(rotated_name(path, bytes.size())))
      bytes += content_of(rotated_name(path, bytes.size()));
    return bytes + content_of(path);
  };
  EXPECT_TRUE(whole(Stream::kOut) == out);
  EXPECT_TRUE(whole(Stream::kErr) == err);
  EXPECT_EQ(std::filesystem::file_size(rotated_name(log_of(0, Stream::kOut), 64 * 1024)),
            64U * 1024);
  EXPECT_THAT(router_->notices(), IsEmpty());
}

TEST_F(LogRouterTest, MergedStreamsKeepTheOrderOfTheirWrites) {
  options_.log.dir = folder_.path();
  options_.log.merge_stderr = true;
  worker_.tee = Streams::kAll;
  start(1);
  std::string expected;
  {
    const WorkerStdio worker = open(0);
    for (int i = 0; i < 1'000; ++i) {
      const std::string line = std::to_string(i) + "\n";
      say(i % 3 == 0 ? worker.err : worker.out, line);
      expected += line;
    }
  }
  drain(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(content_of(log_of(0, Stream::kOut)), expected);
  EXPECT_FALSE(std::filesystem::exists(log_of(0, Stream::kErr)));
  EXPECT_EQ(out_.all(), expected);
  EXPECT_EQ(err_.all(), "");
  EXPECT_EQ(router_->tail(0).out, expected);
  EXPECT_EQ(router_->tail(0).err, "");
}

TEST_F(LogRouterTest, EachGenerationHasItsFolder) {
  options_.log.dir = folder_.path();
  worker_.redirect = Streams::kAll;
  start(1);
  for (int generation = 0; generation < 2; ++generation) {
    say(open(0, generation).out, "generation " + std::to_string(generation));
    drain(0);
  }
  EXPECT_TRUE(close());

  EXPECT_EQ(content_of(log_of(0, Stream::kOut, 0)), "generation 0");
  EXPECT_EQ(content_of(log_of(0, Stream::kOut, 1)), "generation 1");
  EXPECT_EQ(router_->error_file(0, 1), folder_.path() / "job/attempt_1/0/error.json");
}

TEST_F(LogRouterTest, APrefixNamesRankAndStream) {
  options_.log.prefix = true;
  start(1);
  say(open(0).err, "a\nb\n");
  drain(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(err_.all(), "[r0 err] a\n[r0 err] b\n");
}

TEST_F(LogRouterTest, AWorkerThatNeverWroteHasAnEmptyTail) {
  start(1);
  open(0);
  drain(0);

  EXPECT_EQ(router_->tail(0).out, "");
  EXPECT_EQ(router_->tail(5).err, "");
}

TEST_F(LogRouterTest, WithoutAWorkerACutIsDoneAtOnce) {
  start(1);

  drain(0);
  EXPECT_TRUE(close());
}

}  // namespace
}  // namespace accel::supervisor::log_router_test

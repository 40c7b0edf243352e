// What a file system does that does not answer, a future does here.

#include "launcher/watch/side_reader.h"

#include <future>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::side_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SideReaderTest : public ::testing::Test {
 protected:
  SideReader::Done tell() {
    return [this](const std::string& failure) { told_.push_back(failure); };
  }
  void run_until_told(std::size_t count) {
    while (told_.size() < count) loop_.run_one();
  }

  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays_{
      loop_.get_executor()};
  std::vector<std::string> told_;
};

TEST_F(SideReaderTest, WhatAReadThrowsIsToldAndTheNextOneIsRead) {
  SideReader reader(loop_);
  const auto text = std::make_shared<std::string>();
  reader.add([] { throw std::bad_alloc(); }, tell());
  reader.add([text] { *text = "read"; }, tell());
  run_until_told(2);
  EXPECT_THAT(told_, ElementsAre(HasSubstr("bad_alloc"), ""));
  EXPECT_EQ(*text, "read");
}

TEST_F(SideReaderTest, BehindAReadThatHangsOnlySoManyWait) {
  std::promise<void> end;
  std::promise<void> has_begun;
  SideReader reader(loop_);
  reader.add(
      [&has_begun, until = end.get_future().share()] {
        has_begun.set_value();
        until.wait();
      },
      tell());
  has_begun.get_future().wait();
  for (std::size_t i = 0; i < SideReader::kMostWaiting; ++i) reader.add([] {}, tell());
  EXPECT_THAT(told_, IsEmpty());

  reader.add([] {}, tell());
  EXPECT_THAT(told_, ElementsAre(HasSubstr("has not answered")));

  end.set_value();
  run_until_told(SideReader::kMostWaiting + 2);
}

TEST_F(SideReaderTest, TheEndWaitsForNoReadThatHangs) {
  std::promise<void> end;
  const auto has_begun = std::make_shared<std::promise<void>>();
  const auto is_over = std::make_shared<std::promise<void>>();
  auto reader = std::make_unique<SideReader>(loop_);
  reader->add(
      [until = end.get_future().share(), has_begun, is_over] {
        has_begun->set_value();
        until.wait();
        is_over->set_value();
      },
      tell());
  reader->add([] {}, tell());
  has_begun->get_future().wait();

  reader.reset();

  end.set_value();
  is_over->get_future().wait();
  loop_.poll();
  EXPECT_THAT(told_, IsEmpty());
}

}  // namespace
}  // namespace accel::launcher::side_reader_test

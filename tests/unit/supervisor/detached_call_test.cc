#include "runtime/supervisor/kernel/detached_call.h"

#include <future>

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

namespace accel::supervisor::detached_call_test {
namespace {

TEST(DetachedCallTest, GivesTheResultToTheLoopThatWaitsForIt) {
  boost::asio::io_context loop;
  Result<int> got = 0;
  const DetachedCall<int> call(
      loop.get_executor(),
      [] { return Result<int>(7); },
      "no call",
      [&](const Result<int>& result) { got = result; });

  loop.run();

  ASSERT_TRUE(got);
  EXPECT_EQ(*got, 7);
}

TEST(DetachedCallTest, NobodyWaitsForACallThatDoesNotReturn) {
  std::promise<void> returns;
  bool is_told = false;
  auto of_the_thread = std::make_shared<std::shared_future<void>>(returns.get_future());
  const std::weak_ptr<void> thread = of_the_thread;
  {
    boost::asio::io_context loop;
    const DetachedCall<int> call(
        loop.get_executor(),
        [wait = std::move(of_the_thread)] {
          wait->wait();
          return Result<int>(7);
        },
        "no call",
        [&](const Result<int>&) { is_told = true; });
  }

  returns.set_value();  // the loop is gone: the late result touches nothing of it

  while (!thread.expired()) std::this_thread::yield();
  EXPECT_FALSE(is_told);
}

}  // namespace
}  // namespace accel::supervisor::detached_call_test

#include "launcher/name_lookup.h"

#include <future>
#include <memory>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::name_lookup_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Addresses = std::vector<std::string>;

TEST(NameLookupTest, GivesTheAddressesToTheLoopThatWaitsForThem) {
  boost::asio::io_context loop;
  HostAddresses found = Addresses{};
  const NameLookup lookup(
      loop.get_executor(),
      "gpu-01",
      [](const std::string& host) {
        return HostAddresses(Addresses{host, "10.0.0.7"});
      },
      [&](const HostAddresses& answer) { found = answer; });

  loop.run();

  ASSERT_TRUE(found);
  EXPECT_THAT(*found, ElementsAre("gpu-01", "10.0.0.7"));
}

TEST(NameLookupTest, NobodyWaitsForANameServerThatDoesNotAnswer) {
  std::promise<void> answers;
  bool is_told = false;
  auto of_the_thread = std::make_shared<std::shared_future<void>>(answers.get_future());
  const std::weak_ptr<void> thread = of_the_thread;
  {
    boost::asio::io_context loop;
    const NameLookup lookup(
        loop.get_executor(),
        "gpu-01",
        [answer = std::move(of_the_thread)](const std::string&) {
          answer->wait();
          return HostAddresses(Addresses{"10.0.0.7"});
        },
        [&](const HostAddresses&) { is_told = true; });
  }

  answers.set_value();  // the loop is gone: the late answer touches nothing of it

  while (!thread.expired()) std::this_thread::yield();
  EXPECT_FALSE(is_told);
}

TEST(NameLookupTest, SaysWhyANameHasNoAddress) {
  const HostAddresses found = system_resolver()("no-such-name.invalid");

  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message(),
              HasSubstr("ame"));  // "Name or service not known", or of its resolution
}

}  // namespace
}  // namespace accel::launcher::name_lookup_test

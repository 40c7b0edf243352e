#include "agent/calls/connection_gate.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace accel::agent::connection_gate_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using namespace std::chrono_literals;

sockaddr_storage address_of(const char* text) {
  sockaddr_storage out{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(out);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  if (::inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
  } else {
    ::inet_pton(AF_INET6, text, &v6.sin6_addr);
    v6.sin6_family = AF_INET6;
  }
  return out;
}

TEST(CallerShares, Fault64NobodyGetsMoreThanItsShareAndAllTogetherNoMoreThanThereAre) {
  CallerShares shares({.most = 3, .most_each = 2});
  EXPECT_EQ(shares.take("a"), std::nullopt);
  EXPECT_EQ(shares.take("a"), std::nullopt);
  EXPECT_THAT(shares.take("a"), Optional(HasSubstr("it has 2 connections")));
  EXPECT_EQ(shares.take("b"), std::nullopt);
  EXPECT_THAT(shares.take("c"), Optional(HasSubstr("3 connections in all")));

  shares.give_back("a");
  EXPECT_EQ(shares.take("c"), std::nullopt);
  EXPECT_EQ(shares.count(), 3);
}

TEST(CallerShares, Fault64AnyNumberOfUsersLeaveRoomForRoot) {
  CallerShares shares({.most = 4, .most_each = 2, .kept = 1}, {"uid 0"});
  for (const char* caller : {"uid 1", "uid 2", "uid 3"})
    EXPECT_EQ(shares.take(caller), std::nullopt);
  EXPECT_THAT(shares.take("uid 4"), Optional(HasSubstr("users other than root")));

  EXPECT_EQ(shares.take("uid 0"), std::nullopt);
  EXPECT_THAT(shares.take("uid 0"), Optional(HasSubstr("4 connections in all")));
}

// Two users with half each took all that others than root could have.
TEST(CallerShares, Fault64ManyWhoFloodLeaveRoomForTheNext) {
  CallerShares shares({.most = 64, .most_each = 32, .kept = 8, .leaves_room = true}, {"uid 0"});
  for (int round = 0; round < 64; ++round) {
    for (const char* greedy : {"uid 1", "uid 2", "uid 3"}) (void)shares.take(greedy);
  }
  EXPECT_EQ(shares.count(), 42);

  EXPECT_EQ(shares.take("uid 4"), std::nullopt);
  EXPECT_THAT(
      shares.take("uid 1"),
      Optional(HasSubstr("it has 14 connections, as many as one caller may of what is left")));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(shares.take("uid 0"), std::nullopt);
}

TEST(CallerShares, RootAndTheAgentsOwnUserAreFavoured) {
  EXPECT_THAT(favoured_users(), ::testing::UnorderedElementsAre("uid 0", caller_of(::geteuid())));
}

TEST(CallerShares, WhatIsThereCountsBeyondTheLimits) {
  CallerShares shares({.most = 2, .most_each = 1, .things = "jobs"});
  shares.add("a");
  shares.add("a");
  EXPECT_THAT(shares.take("b"), Optional(HasSubstr("2 jobs in all are as many as there may be")));
}

TEST(CallerShares, WhoHasMostLosesItsOldest) {
  EXPECT_THAT(surplus_of({}, 0), testing::ElementsAre());
  EXPECT_THAT(surplus_of({"ann", "bob"}, 2), testing::ElementsAre());
  EXPECT_THAT(surplus_of({"bob", "ann", "ann", "ann", "ann"}, 3), testing::ElementsAre(1, 2));
  EXPECT_THAT(surplus_of({"bob", "ann", "ann", "bob"}, 1), testing::ElementsAre(1, 0, 2));
}

TEST(CallerShares, WhatWasNeverTakenIsNotGivenBack) {
  CallerShares shares({.most = 1, .most_each = 1});
  shares.give_back("a");
  EXPECT_EQ(shares.count(), 0);
}

TEST(CallerShares, ACallerIsAnAddressAndForIpv6AWholeNetwork) {
  EXPECT_EQ(caller_of(address_of("10.1.2.3")), "10.1.2.3");
  EXPECT_EQ(caller_of(address_of("::ffff:10.1.2.3")), "10.1.2.3");
  EXPECT_EQ(caller_of(address_of("2001:db8:1:2:3:4:5:6")), "2001:db8:1:2::/64");
  EXPECT_EQ(caller_of(address_of("2001:db8:1:2::9")), "2001:db8:1:2::/64");
  EXPECT_NE(caller_of(address_of("2001:db8:1:3::9")), "2001:db8:1:2::/64");
}

// The server's side: what was handed over, and what was refused.
class ConnectionGateTest : public ::testing::Test {
 protected:
  void open(ShareLimits limits) {
    auto opened = ConnectionGate::open(
        supervisor::TcpEndpoint(boost::asio::ip::address_v4::loopback(), 0), limits);
    ASSERT_TRUE(opened) << opened.error().what();
    gate_ = *std::move(opened);
    gate_->start({.on_connection =
                      [this](UniqueFd fd) {
                        const std::lock_guard lock(mutex_);
                        taken_.push_back(std::move(fd));
                        changed_.notify_all();
                      },
                  .on_refused =
                      [this](const std::string& line) {
                        const std::lock_guard lock(mutex_);
                        refused_.push_back(line);
                        changed_.notify_all();
                      }});
  }

  // From an address of this machine: all of 127/8 are.
  UniqueFd connect_from(const char* source) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage from = address_of(source);
    sockaddr_storage to = address_of("127.0.0.1");
    reinterpret_cast<sockaddr_in&>(to).sin_port = htons(static_cast<std::uint16_t>(gate_->port()));
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof(sockaddr_in)), 0);
    // One too many may be reset before connect() has returned.
    const int connected =
        ::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(sockaddr_in));
    connect_error_ = connected == 0 ? 0 : errno;
    EXPECT_TRUE(connect_error_ == 0 || connect_error_ == ECONNRESET) << connect_error_;
    return fd;
  }

  bool wait_for(std::size_t num_taken, std::size_t num_refused) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(
        lock, 60s, [&] { return taken_.size() >= num_taken && refused_.size() >= num_refused; });
  }

  // As gRPC ends a connection.
  void end_taken(std::size_t index) {
    const std::lock_guard lock(mutex_);
    ::shutdown(taken_[index].get(), SHUT_RDWR);
    taken_[index].reset();
  }

  // The gate hears of ends beside what comes: a caller that is refused tries again.
  bool is_admitted_at_last(const char* source) {
    const std::size_t before = num_taken();
    for (int i = 0; i < 600; ++i) {
      clients_.push_back(connect_from(source));
      const std::size_t answers = before + num_refused() + 1;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, 100ms, [&] { return taken_.size() + refused_.size() >= answers; });
      if (taken_.size() > before) return true;
    }
    return false;
  }
  std::size_t num_taken() {
    const std::lock_guard lock(mutex_);
    return taken_.size();
  }
  std::size_t num_refused() {
    const std::lock_guard lock(mutex_);
    return refused_.size();
  }

  // What the last one that connected meets when it reads; 0: something came.
  int read_error(const UniqueFd& client) const {
    char byte = 0;
    if (connect_error_ != 0) return connect_error_;
    return ::recv(client.get(), &byte, 1, 0) < 0 ? errno : 0;
  }

  int connect_error_ = 0;  // of the last one
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<UniqueFd> taken_;
  std::vector<std::string> refused_;
  std::vector<UniqueFd> clients_;
  std::unique_ptr<ConnectionGate> gate_;  // first to go: its thread uses the others
};

TEST_F(ConnectionGateTest, Fault64AConnectionBeyondTheShareIsResetAndOthersAreTaken) {
  open({.most = 10, .most_each = 2});
  const UniqueFd first = connect_from("127.0.0.1");
  const UniqueFd second = connect_from("127.0.0.1");
  const UniqueFd third = connect_from("127.0.0.1");
  ASSERT_TRUE(wait_for(2, 1));

  EXPECT_EQ(read_error(third), ECONNRESET);
  EXPECT_THAT(refused_[0], HasSubstr("refused a connection from 127.0.0.1"));
  const UniqueFd other = connect_from("127.0.0.2");
  EXPECT_TRUE(wait_for(3, 1));
}

TEST_F(ConnectionGateTest, AnEndThatTheServerMakesGivesTheShareBack) {
  open({.most = 1, .most_each = 1});
  const UniqueFd first = connect_from("127.0.0.1");
  ASSERT_TRUE(wait_for(1, 0));
  const UniqueFd second = connect_from("127.0.0.1");
  ASSERT_TRUE(wait_for(1, 1));

  end_taken(0);

  EXPECT_TRUE(is_admitted_at_last("127.0.0.1"));
}

TEST_F(ConnectionGateTest, WhatTheClientSaysOrHalfClosesDoesNotGiveTheShareBack) {
  open({.most = 1, .most_each = 1});
  const UniqueFd first = connect_from("127.0.0.1");
  ASSERT_TRUE(wait_for(1, 0));
  ASSERT_EQ(::send(first.get(), "hello", 5, 0), 5);
  ASSERT_EQ(::shutdown(first.get(), SHUT_WR), 0);
  // Until the server's side knows of it.
  pollfd both = {.fd = taken_[0].get(), .events = POLLRDHUP, .revents = 0};
  ASSERT_EQ(::poll(&both, 1, 60'000), 1);

  const UniqueFd second = connect_from("127.0.0.1");

  EXPECT_TRUE(wait_for(1, 1));
  EXPECT_EQ(num_taken(), 1U);
}

TEST_F(ConnectionGateTest, ClosedItTakesNothingAndLeavesOpenWhatItGave) {
  open({.most = 4, .most_each = 4});
  const UniqueFd first = connect_from("127.0.0.1");
  ASSERT_TRUE(wait_for(1, 0));
  gate_->close();

  ASSERT_EQ(::send(taken_[0].get(), "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(::recv(first.get(), &byte, 1, 0), 1);
}

TEST(ShareLimits, AreHeldToWhatTheOpenFilesHaveRoomFor) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit small = {.rlim_cur = 1024, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  const ShareLimits held = within_open_files({.most = 4096, .most_each = 512});
  const ShareLimits modest = within_open_files({.most = 100, .most_each = 10});
  const ShareLimits local = local_connection_limits();
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(held.most, 256);
  EXPECT_EQ(held.most_each, 256);
  EXPECT_EQ(modest.most, 100);
  EXPECT_EQ(modest.most_each, 10);
  EXPECT_EQ(local.most, 128);
  EXPECT_EQ(local.most_each, 64);
}

}  // namespace
}  // namespace accel::agent::connection_gate_test

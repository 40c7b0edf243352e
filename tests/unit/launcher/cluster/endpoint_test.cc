#include "launcher/cluster/meeting/endpoint.h"

#include <future>
#include <thread>
#include <tuple>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/supervisor/http/listening_socket.h"
#include "runtime/unique_fd.h"
#include "tests/support/reserved_port.h"

namespace accel::cluster::endpoint_test {
namespace {

namespace ip = boost::asio::ip;
using namespace std::chrono_literals;
using launcher::Resolver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kGenerous = 60'000ms;

Resolver answering(const std::vector<std::string>& hosts) {
  std::vector<ip::address> addresses;
  for (const std::string& host : hosts) addresses.push_back(ip::make_address(host));
  return [addresses](const std::string&) { return addresses; };
}

std::vector<std::string> resolved(const std::string& text, const Resolver& resolver) {
  std::vector<std::string> texts;
  for (const TcpEndpoint& address : or_throw(resolve_endpoint(text, kGenerous, resolver)))
    texts.push_back(to_text(address));
  return texts;
}

TcpEndpoint loopback_at(const test::ReservedPort& port) {
  return {ip::address_v4::loopback(), static_cast<std::uint16_t>(port.port())};
}

// A socket that listens at a port of this machine.
class Listener {
 public:
  explicit Listener(const test::ReservedPort& port)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port.port()));
    if (::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(fd_.get(), 4) != 0) {
      throw std::runtime_error("cannot listen");
    }
  }

 private:
  UniqueFd fd_;
};

TEST(Endpoint, AnAddressNeedsNoLookUp) {
  const Resolver never = [](const std::string&) -> launcher::HostAddresses {
    throw std::logic_error("was asked");
  };
  EXPECT_THAT(resolved("10.0.0.7:29400", never), ElementsAre("10.0.0.7:29400"));
  EXPECT_THAT(resolved("[fd00::7]:29400", never), ElementsAre("[fd00::7]:29400"));
}

TEST(Endpoint, ANameGivesItsAddressesWithLoopbackLast) {
  EXPECT_THAT(resolved("gpu-01:29400", answering({"127.0.1.1", "10.0.0.7", "fd00::7"})),
              ElementsAre("10.0.0.7:29400", "[fd00::7]:29400", "127.0.1.1:29400"));
}

TEST(Endpoint, Fault48ANameWithoutAddressIsSaidSo) {
  const auto result = resolve_endpoint("nowhere:1", kGenerous, answering({}));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kRendezvousTimeout);
  EXPECT_THAT(result.error().message(), HasSubstr("the name 'nowhere' has no address"));
}

TEST(Endpoint, Fault48ANameServiceThatHangsIsLeftBehind) {
  std::promise<void> hanging;
  const auto until = hanging.get_future().share();
  const Resolver hangs = [until](const std::string&) {
    until.wait();
    return std::vector{ip::make_address("10.0.0.7")};
  };

  const auto result = resolve_endpoint("gpu-01:29400", 1ms, hangs);
  hanging.set_value();

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kRendezvousTimeout);
  EXPECT_THAT(result.error().message(), HasSubstr("'gpu-01' was not resolved within 1 ms"));
}

TEST(Endpoint, WhatIsNeitherNameNorAddressIsRefused) {
  for (const char* text :
       {"", ":", ":29400", "host", "host:", "host:x", "host:99999", "a b:1", "[::1:2", "host:-1"}) {
    const auto result = resolve_endpoint(text, kGenerous, answering({"10.0.0.7"}));
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(Endpoint, LocalhostIsAnAddressAndOtherNamesAreNot) {
  EXPECT_FALSE(is_by_name("localhost:1"));
  EXPECT_FALSE(is_by_name("127.0.0.1:1"));
  EXPECT_FALSE(is_by_name("[::1]:1"));
  EXPECT_TRUE(is_by_name("gpu-01:1"));
}

TEST(Endpoint, AnAddressIsFreeUntilSomebodyListensThere) {
  const test::ReservedPort port;
  const TcpEndpoint at = loopback_at(port);
  {
    const Listener listener(port);
    EXPECT_FALSE(is_ours_and_free(at));
  }
  EXPECT_TRUE(is_ours_and_free(at));
  EXPECT_FALSE(is_ours_and_free({ip::make_address("192.0.2.1"), at.port()}));
}

// Two launchers of one machine that start together: one asks while the other takes the port.
TEST(Endpoint, WhoAsksDisturbsNobodyWhoTakesThePort) {
  const test::ReservedPort port;
  const TcpEndpoint at = loopback_at(port);
  std::jthread asking([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::ignore = is_ours_and_free(at);
  });
  for (int i = 0; i < 5'000; ++i) {
    const auto taken = supervisor::listen_at(at, 1);
    ASSERT_TRUE(taken) << i << ": " << taken.error().message();
  }
}

TEST(Endpoint, Fault48TheFirstAddressThatAnswersIsTaken) {
  const test::ReservedPort silent;
  const test::ReservedPort open;
  const Listener listener(open);
  const std::vector<TcpEndpoint> addresses = {loopback_at(silent), loopback_at(open)};

  const auto reached = first_reachable(addresses, kGenerous, {});

  ASSERT_TRUE(reached);
  EXPECT_EQ(reached->port(), open.port());
}

TEST(Endpoint, OwnAddressesAreOfThisMachine) {
  const auto own = own_addresses();
  ASSERT_FALSE(own.empty());
  for (const std::string& host : own) {
    auto address = resolve_endpoint(
        host.find(':') == std::string::npos ? host + ":0" : "[" + host + "]:0", kGenerous);
    ASSERT_TRUE(address) << host;
    EXPECT_TRUE(is_ours_and_free(address->front())) << host;
  }
}

TEST(Endpoint, LoopbackIsAdvertisedOnlyWhenItIsMeant) {
  const TcpEndpoint loopback(ip::address_v4::loopback(), 1);
  EXPECT_EQ(own_address_towards(loopback, true), "127.0.0.1");
  EXPECT_EQ(own_address_towards(loopback, false), own_addresses().front());
}

}  // namespace
}  // namespace accel::cluster::endpoint_test

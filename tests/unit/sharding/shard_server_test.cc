// A server of shards and who asks it, over the loopback.

#include "libaccel/engine/remote/shard_server.h"

#include <array>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accel/error.h>

namespace accel::sharding::shard_server_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class ShardServerTest : public ::testing::Test {
 protected:
  ShardServerTest()
      : token_(make_shard_token()),
        shards_{std::vector<std::byte>(5'000'000), {}, std::vector<std::byte>(7)} {
    for (std::size_t i = 0; i < shards_[0].size(); ++i)
      shards_[0][i] = static_cast<std::byte>(i * 7);
  }

  std::unique_ptr<ShardServer> serve(ShardServer::Options options) {
    options.token = token_;
    options.num_units = shards_.size();
    options.shard_of = [this](std::size_t unit) {
      return std::span<const std::byte>(shards_[unit]);
    };
    auto server = ShardServer::listen("127.0.0.1", std::move(options));
    EXPECT_TRUE(server);
    return *std::move(server);
  }
  std::unique_ptr<ShardServer> serve() { return serve({}); }

  // Of a world in which rank 1 is the server.
  ShardClient client_of(int port, ShardToken token) {
    return ShardClient({.token = token,
                        .endpoints = {{}, {"127.0.0.1", port}},
                        .silence_limit = std::chrono::seconds(20)});
  }

  ShardToken token_;
  std::vector<std::vector<std::byte>> shards_;
};

// From rank 1.
void fetch(ShardClient& client, std::size_t unit, std::span<std::byte> into) {
  const WantedShard wanted{1, into};
  int num_arrived = 0;
  client.fetch(unit, {&wanted, 1}, [&](std::size_t) { ++num_arrived; });
  EXPECT_EQ(num_arrived, 1);
}

TEST_F(ShardServerTest, GivesEachShardAsOftenAsItIsAskedFor) {
  const auto server = serve();
  ShardClient client = client_of(server->port(), token_);
  std::vector<std::byte> got(shards_[0].size());
  for (int round = 0; round < 3; ++round) {
    std::fill(got.begin(), got.end(), std::byte{0});
    fetch(client, 0, got);
    EXPECT_EQ(got, shards_[0]);
  }
  fetch(client, 1, {});
  std::vector<std::byte> small(7, std::byte{1});
  fetch(client, 2, small);
  EXPECT_EQ(small, shards_[2]);
}

TEST_F(ShardServerTest, ServesManyAtATime) {
  const auto server = serve();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ShardClient client = client_of(server->port(), token_);
      std::vector<std::byte> got(shards_[0].size());
      for (int round = 0; round < 5; ++round) fetch(client, 0, got);
      EXPECT_EQ(got, shards_[0]);
    });
  }
}

// Each owner answers once the other one has been asked too.
TEST_F(ShardServerTest, AllOwnersAreAskedBeforeTheFirstAnswerIsRead) {
  std::latch both_asked(2);
  const auto serve_after_both = [&] {
    return *ShardServer::listen(
        "127.0.0.1", {.token = token_, .num_units = 3, .shard_of = [&](std::size_t unit) {
                        both_asked.arrive_and_wait();
                        return std::span<const std::byte>(shards_[unit]);
                      }});
  };
  const auto one = serve_after_both();
  const auto two = serve_after_both();
  ShardClient client({.token = token_,
                      .endpoints = {{}, {"127.0.0.1", one->port()}, {"127.0.0.1", two->port()}},
                      .silence_limit = std::chrono::seconds(20)});
  std::vector<std::byte> first(7);
  std::vector<std::byte> second(7);
  const std::array<WantedShard, 2> wanted = {WantedShard{1, first}, WantedShard{2, second}};
  std::vector<std::size_t> arrived;
  client.fetch(2, wanted, [&](std::size_t i) { arrived.push_back(i); });
  EXPECT_THAT(arrived, UnorderedElementsAre(0, 1));
  EXPECT_EQ(first, shards_[2]);
  EXPECT_EQ(second, shards_[2]);
}

// The first owner answers once the shard of the second one, more than connections hold, has come whole: whoever reads one
// after the other waits for ever.
TEST_F(ShardServerTest, AnOwnerThatIsSlowDoesNotHoldUpTheOthers) {
  constexpr std::size_t kMoreThanConnectionsHold = std::size_t{64} << 20;
  const std::vector<std::byte> large(kMoreThanConnectionsHold, std::byte{5});
  std::latch second_arrived(1);
  const auto serve_with = [&](std::function<std::span<const std::byte>(std::size_t)> shard_of) {
    return *ShardServer::listen("127.0.0.1",
                                {.token = token_, .num_units = 1, .shard_of = std::move(shard_of)});
  };
  const auto one = serve_with([&](std::size_t) {
    second_arrived.wait();
    return std::span<const std::byte>(large);
  });
  const auto two = serve_with([&](std::size_t) { return std::span<const std::byte>(large); });
  ShardClient client({.token = token_,
                      .endpoints = {{}, {"127.0.0.1", one->port()}, {"127.0.0.1", two->port()}},
                      .silence_limit = std::chrono::seconds(20)});
  std::vector<std::byte> first(large.size());
  std::vector<std::byte> second(large.size());
  const std::array<WantedShard, 2> wanted = {WantedShard{1, first}, WantedShard{2, second}};
  std::vector<std::size_t> arrived;
  client.fetch(0, wanted, [&](std::size_t i) {
    arrived.push_back(i);
    if (i == 1) second_arrived.count_down();
  });
  EXPECT_THAT(arrived, ElementsAre(1, 0));
  EXPECT_EQ(first, large);
  EXPECT_EQ(second, large);
}

TEST_F(ShardServerTest, AnOwnerThatIsGoneLeavesTheAnswersOfTheOthersUsable) {
  const auto one = serve();
  auto two = serve();
  ShardClient client({.token = token_,
                      .endpoints = {{}, {"127.0.0.1", one->port()}, {"127.0.0.1", two->port()}},
                      .silence_limit = std::chrono::seconds(20)});
  std::vector<std::byte> first(7);
  std::vector<std::byte> second(7);
  const std::array<WantedShard, 2> wanted = {WantedShard{1, first}, WantedShard{2, second}};
  two.reset();
  EXPECT_THROW(client.fetch(2, wanted, [](std::size_t) {}), Error);
  // What rank 1 had begun to say is not taken for the answer to another question.
  std::vector<std::byte> large(shards_[0].size());
  fetch(client, 0, large);
  EXPECT_EQ(large, shards_[0]);
}

TEST_F(ShardServerTest, GivesNothingForAnotherToken) {
  const auto server = serve();
  ShardToken other = token_;
  other[15] = static_cast<char>(other[15] ^ 1);
  ShardClient client = client_of(server->port(), other);
  std::vector<std::byte> got(7);
  try {
    fetch(client, 2, got);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 gives no parameters"));
  }
}

TEST_F(ShardServerTest, EndsAConnectionThatAsksForWhatThereIsNot) {
  const auto server = serve();
  ShardClient client = client_of(server->port(), token_);
  EXPECT_THROW(fetch(client, 3, {}), Error);
  std::vector<std::byte> got(7);
  fetch(client, 2, got);  // by a new connection
}

TEST_F(ShardServerTest, AShardOfAnotherLengthIsNamed) {
  const auto server = serve();
  ShardClient client = client_of(server->port(), token_);
  std::vector<std::byte> got(8);
  try {
    fetch(client, 2, got);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
    EXPECT_THAT(error.message(), HasSubstr("7 bytes in its shard of unit 2, and 8 are expected"));
  }
}

TEST_F(ShardServerTest, AServerThatEndedIsARankThatIsLost) {
  auto server = serve();
  ShardClient client = client_of(server->port(), token_);
  std::vector<std::byte> got(7);
  fetch(client, 2, got);
  server.reset();
  EXPECT_THROW(fetch(client, 2, got), Error);
  EXPECT_THROW(fetch(client, 2, got), Error);  // nobody listens there
}

// Connects, sends `text`, and returns what comes until the other side ends the connection.
std::string answer_to(int port, std::string_view text) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return "no connection";
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
  std::string answer;
  char byte = 0;
  while (::recv(socket.get(), &byte, 1, 0) == 1) answer += byte;
  return answer;
}

TEST_F(ShardServerTest, EndsConnectionsThatGreetWronglyOrNotAtAll) {
  const auto server = serve({.greeting_limit = std::chrono::milliseconds(50)});
  EXPECT_EQ(answer_to(server->port(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n0123456789"), "");
  EXPECT_EQ(answer_to(server->port(), "accel"), "");
}

TEST_F(ShardServerTest, RefusesMoreConnectionsThanItMayHold) {
  const auto server = serve({.max_connections = 1});
  ShardClient first = client_of(server->port(), token_);
  std::vector<std::byte> got(7);
  fetch(first, 2, got);
  ShardClient second = client_of(server->port(), token_);
  EXPECT_THROW(fetch(second, 2, got), Error);
  fetch(first, 2, got);
}

TEST(ShardToken, ComesBackFromItsText) {
  const ShardToken token = make_shard_token();
  EXPECT_EQ(*parse_shard_token(to_text(token)), token);
  EXPECT_FALSE(parse_shard_token("0123"));
  EXPECT_FALSE(parse_shard_token(std::string(31, '0') + "g"));
}

}  // namespace
}  // namespace accel::sharding::shard_server_test

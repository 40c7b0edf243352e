// The server with real sockets on the loopback: clients of every temper, on one thread against
// another.

#include "runtime/supervisor/store/store_server.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/support/store_client.h"

namespace accel::supervisor::store_server_test {
namespace {

using test::store_add;
using test::store_hello;
using test::store_keys_request;
using test::store_request;
using test::StoreClient;
using ::testing::HasSubstr;

std::size_t count_open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

class StoreServerTest : public ::testing::Test {
 protected:
  // Runs a server in a thread of its own until the test ends.
  void start(StoreOptions options = {}) {
    options.policy.port = 0;
    server_ = std::move(StoreServer::listen(context_, std::move(options))).value();
    thread_ = std::jthread([this] { context_.run(); });
  }

  // Runs `body` on the server's thread and waits for it.
  template <typename F>
  auto on_server_thread(F body) {
    std::packaged_task<decltype(body())()> task(body);
    auto result = task.get_future();
    boost::asio::post(context_, [&task] { task(); });
    return result.get();
  }

  StoreCounters counters() {
    return on_server_thread([this] { return server_->counters(); });
  }

  // Polls until the condition holds; the bound only ends a test that has failed.
  bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  ~StoreServerTest() override {
    if (!thread_.joinable()) return;
    on_server_thread([this] { server_.reset(); });
    guard_.reset();
  }

  StoreClient connect() { return StoreClient::validated(server_->port()); }

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      context_.get_executor()};
  std::unique_ptr<StoreServer> server_;
  std::jthread thread_;
};

TEST_F(StoreServerTest, ServesPipelinedRequestsInOrder) {
  start();
  StoreClient client = connect();

  client.send(store_request(StoreCommand::kPing, 7) +
              store_request(StoreCommand::kSet, {"key", "value"}) +
              store_request(StoreCommand::kGet, {"key"}) + store_add("n", 5));

  EXPECT_EQ(client.receive(4), std::string("\7\0\0\0", 4));
  EXPECT_EQ(client.receive_blob(), "value");
  EXPECT_EQ(client.receive_i64(), 5);
}

TEST_F(StoreServerTest, WakesAClientThatWaits) {
  start();
  StoreClient waiter = connect();
  StoreClient setter = connect();
  waiter.send(store_keys_request(StoreCommand::kWait, std::vector<std::string>{"key"}) +
              store_request(StoreCommand::kPing, 1));
  ASSERT_EQ(waiter.receive(4).size(), 4u);  // the WAIT is pending, the PING behind it was served

  setter.send(store_request(StoreCommand::kSet, {"key", "value"}));

  EXPECT_EQ(waiter.receive_u8(), kStoreWaitOver);
}

TEST_F(StoreServerTest, CarriesAValueOfTheLargestSize) {
  start();
  StoreClient client = connect();
  const std::string value(kStoreMaxValueBytes, 'v');
  std::jthread sender([&] {
    client.send(store_request(StoreCommand::kSet, {"big", value}) +
                store_request(StoreCommand::kGet, {"big"}));
  });

  EXPECT_EQ(client.receive_blob(), value);
}

TEST_F(StoreServerTest, ServesAThousandClientsAtOnce) {
  start();
  constexpr int kClients = 1000;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::vector<StoreClient> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(connect());

  // A barrier as process groups use it: everybody adds, the last one sets what all wait for.
  for (StoreClient& client : clients) {
    client.send(store_add("arrived", 1) +
                store_keys_request(StoreCommand::kWait, std::vector<std::string>{"all"}));
  }
  std::int64_t highest = 0;
  for (StoreClient& client : clients) highest = std::max(highest, client.receive_i64());
  clients.front().send(store_request(StoreCommand::kSet, {"all", "1"}));

  EXPECT_EQ(highest, kClients);
  for (StoreClient& client : clients) ASSERT_EQ(client.receive_u8(), kStoreWaitOver);
  EXPECT_EQ(counters().connections, static_cast<std::size_t>(kClients));
}

TEST_F(StoreServerTest, DisconnectsAClientThatBreaksTheProtocolAndKeepsTheOthers) {
  std::vector<std::string> notices;
  StoreOptions options;
  options.on_notice = [&](const Error& error) { notices.push_back(error.render()); };
  start(std::move(options));
  StoreClient good = connect();
  StoreClient bad = connect();

  bad.send("\xFF");

  EXPECT_TRUE(bad.is_closed_by_server());
  good.send(store_request(StoreCommand::kPing, 1));
  EXPECT_EQ(good.receive(4).size(), 4u);
  EXPECT_EQ(counters().violations, 1u);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(notices[0], HasSubstr("unknown request code 255"));
}

TEST_F(StoreServerTest, DisconnectsAClientThatDoesNotValidate) {
  start();
  StoreClient client(server_->port());

  client.send("GET / HTTP/1.1\r\n\r\n");

  EXPECT_TRUE(client.is_closed_by_server());
}

TEST_F(StoreServerTest, DisconnectsAClientThatDoesNotFinishItsRequest) {
  StoreOptions options;
  options.partial_timeout = std::chrono::milliseconds(50);
  start(std::move(options));
  StoreClient silent(server_->port());
  StoreClient half = connect();
  StoreClient idle = connect();

  half.send(store_request(StoreCommand::kSet, {"key"}));

  EXPECT_TRUE(half.is_closed_by_server());
  EXPECT_TRUE(silent.is_closed_by_server());
  idle.send(store_request(StoreCommand::kPing, 1));
  EXPECT_EQ(idle.receive(4).size(), 4u);
}

TEST_F(StoreServerTest, AnUnfinishedRequestHasTimeWhileTheJobIsSuspended) {
  StoreOptions options;
  options.partial_timeout = std::chrono::milliseconds(50);
  start(std::move(options));
  on_server_thread([this] { server_->suspend_timeouts(); });
  StoreClient half = connect();
  half.send(store_request(StoreCommand::kSet, {"key"}));
  ASSERT_TRUE(eventually([&] { return counters().buffered_bytes > 0; }));

  on_server_thread([this] { server_->resume_timeouts(); });

  EXPECT_TRUE(half.is_closed_by_server());
}

TEST_F(StoreServerTest, DoesNotReadFromAClientThatDoesNotRead) {
  start();
  StoreClient setter = connect();
  setter.send(store_request(StoreCommand::kSet, {"big", std::string(1 << 20, 'v')}));
  StoreClient hog = connect();
  ASSERT_EQ(::fcntl(hog.fd(), F_SETFL, O_NONBLOCK), 0);
  std::string gets;
  for (int i = 0; i < 1000; ++i) gets += store_request(StoreCommand::kGet, {"big"});

  for (int i = 0; i < 1000; ++i) hog.send(gets);  // stops where the socket is full

  // A reply of 1 GiB in all was asked for; what is held for the hog stays near one reply.
  ASSERT_TRUE(eventually([&] { return counters().buffered_bytes > 0; }));
  EXPECT_LT(counters().buffered_bytes, 8u << 20);
  setter.send(store_request(StoreCommand::kPing, 1));
  EXPECT_EQ(setter.receive(4).size(), 4u);
}

TEST_F(StoreServerTest, AClientThatPausedGetsEverythingOnceItReads) {
  start();
  StoreClient client = connect();
  client.send(store_request(StoreCommand::kSet, {"big", std::string(1 << 20, 'v')}));
  std::string gets;
  for (int i = 0; i < 64; ++i) gets += store_request(StoreCommand::kGet, {"big"});
  client.send(gets);
  ASSERT_TRUE(eventually([&] { return counters().buffered_bytes > 0; }));

  for (int i = 0; i < 64; ++i) ASSERT_EQ(client.receive_blob().size(), 1u << 20);

  EXPECT_TRUE(eventually([&] { return counters().buffered_bytes == 0; }));
}

TEST_F(StoreServerTest, DisconnectsTheOneWhoFillsTheBuffers) {
  StoreOptions options;
  options.max_buffered_bytes = 1 << 20;
  start(std::move(options));
  StoreClient client = connect();
  std::string half = store_request(StoreCommand::kSet, {"key"});
  append_u64(half, 4 << 20);

  client.send(half + std::string(2 << 20, 'v'));

  EXPECT_TRUE(client.is_closed_by_server());
  EXPECT_EQ(counters().buffered_bytes, 0u);
}

TEST_F(StoreServerTest, RefusesAnotherUser) {
  StoreOptions options;
  options.peer_uid = ::geteuid() + 1;
  start(std::move(options));
  StoreClient client = connect();

  EXPECT_TRUE(client.is_closed_by_server());
  EXPECT_EQ(counters().refused, 1u);
}

TEST_F(StoreServerTest, RefusesMoreConnectionsThanItMayHave) {
  StoreOptions options;
  options.max_connections = 1;
  start(std::move(options));
  StoreClient first = connect();
  first.send(store_request(StoreCommand::kPing, 1));
  ASSERT_EQ(first.receive(4).size(), 4u);

  StoreClient second = connect();

  EXPECT_TRUE(second.is_closed_by_server());
}

TEST_F(StoreServerTest, SurvivesALackOfDescriptors) {
  start();
  StoreClient client = connect();
  client.send(store_request(StoreCommand::kPing, 1));
  ASSERT_EQ(client.receive(4).size(), 4u);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  UniqueFd waiting_socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const rlimit none{static_cast<rlim_t>(waiting_socket.get()) + 1, files.rlim_max};
  std::vector<UniqueFd> fillers;
  ::setrlimit(RLIMIT_NOFILE, &none);
  while (true) {
    UniqueFd filler(::dup(0));
    if (!filler) break;
    fillers.push_back(std::move(filler));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(waiting_socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  client.send(store_request(StoreCommand::kPing, 2));
  EXPECT_EQ(client.receive(4).size(), 4u);

  fillers.clear();
  ::setrlimit(RLIMIT_NOFILE, &files);

  EXPECT_TRUE(eventually([&] { return counters().connections == 2; }));
}

TEST_F(StoreServerTest, DestroyingItCutsTheClientsAndFreesThePort) {
  start();
  const std::uint16_t port = server_->port();
  StoreClient client = connect();
  client.send(store_keys_request(StoreCommand::kWait, std::vector<std::string>{"never"}) +
              store_request(StoreCommand::kPing, 1));
  ASSERT_EQ(client.receive(4).size(), 4u);

  on_server_thread([this] { server_.reset(); });

  EXPECT_TRUE(client.is_closed_by_server());
  on_server_thread([&] {
    StoreOptions options;
    options.policy.port = port;
    options.policy.exact_port = true;
    server_ = std::move(StoreServer::listen(context_, std::move(options))).value();
  });
  StoreClient next = connect();
  next.send(store_request(StoreCommand::kGetNumKeys));
  EXPECT_EQ(next.receive_i64(), 0);
}

TEST_F(StoreServerTest, LeavesNoDescriptorOpen) {
  start();
  const std::size_t before = count_open_descriptors();
  {
    std::vector<StoreClient> clients;
    for (int i = 0; i < 50; ++i) clients.push_back(connect());
    clients[7].send("\xFF");
    ASSERT_TRUE(eventually([&] { return counters().accepted == 50; }));
  }

  EXPECT_TRUE(eventually([&] { return counters().connections == 0; }));
  EXPECT_EQ(count_open_descriptors(), before);
}

TEST_F(StoreServerTest, ItsSocketsAreNotInheritedByPrograms) {
  start();
  StoreClient client = connect();
  client.send(store_request(StoreCommand::kPing, 1));
  ASSERT_EQ(client.receive(4).size(), 4u);

  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(file.path().filename());
    std::error_code gone;
    if (!std::filesystem::read_symlink(file.path(), gone).string().starts_with("socket:")) continue;
    EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << fd;
  }
}

}  // namespace
}  // namespace accel::supervisor::store_server_test

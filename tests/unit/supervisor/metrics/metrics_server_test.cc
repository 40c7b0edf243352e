#include "runtime/supervisor/metrics/metrics_server.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

#include <arpa/inet.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor::metrics_server_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

namespace asio = boost::asio;

constexpr int kPatienceMs = 30'000;  // of the test, for what must come

class MetricsServerTest : public ::testing::Test {
 protected:
  ~MetricsServerTest() override {
    asio::post(loop_, [this] {
      server_.reset();
      loop_.stop();
    });
    if (thread_.joinable()) thread_.join();
  }

  void serve(std::chrono::milliseconds patience = MetricsServer::kPatience) {
    auto made = MetricsServer::listen(loop_,
                                      {boost::asio::ip::address_v4::loopback(), 0},
                                      {.collect = [this](auto done) { collect(std::move(done)); },
                                       .is_ending = [this] { return is_ending_.load(); }},
                                      patience);
    ASSERT_TRUE(made) << made.error().what();
    server_ = *std::move(made);
    port_ = server_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }

  void collect(std::function<void(std::string)> done) {
    ++num_asked_;
    if (!is_slow_) return done("accel_agent_draining 0\n");
    waiting_.push_back(std::move(done));
  }

  [[nodiscard]] UniqueFd connect() const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  static void send(const UniqueFd& fd, std::string_view text) {
    // The server may have closed already: what it said is still there.
    (void)::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Until the server closes.
  static std::string read_all(const UniqueFd& fd) {
    std::string text;
    while (true) {
      pollfd ready = {.fd = fd.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, kPatienceMs) <= 0)
        return text + "(nothing more came, and it did not close)";
      char buffer[4096];
      const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(got));
    }
  }
  [[nodiscard]] std::string ask(std::string_view request) const {
    const UniqueFd fd = connect();
    send(fd, request);
    return read_all(fd);
  }
  [[nodiscard]] std::string get(const std::string& path) const {
    return ask("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
  }

  asio::io_context loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};
  std::unique_ptr<MetricsServer> server_;
  std::thread thread_;
  int port_ = 0;
  std::atomic<bool> is_ending_{false};
  std::atomic<bool> is_slow_{false};
  std::atomic<int> num_asked_{0};
  std::deque<std::function<void(std::string)>> waiting_;  // on the loop
};

TEST_F(MetricsServerTest, GivesThePage) {
  serve();
  EXPECT_THAT(get("/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    HasSubstr("\r\n\r\naccel_agent_draining 0\n")));
  EXPECT_THAT(get("/metrics?a=b"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(MetricsServerTest, GivesTheHeadersAloneToHead) {
  serve();
  EXPECT_THAT(ask("HEAD /metrics HTTP/1.1\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 23\r\n"), Not(HasSubstr("accel_"))));
}

TEST_F(MetricsServerTest, IsHealthyUntilTheAgentEnds) {
  serve();
  EXPECT_THAT(get("/healthz"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\r\n\r\nok\n")));
  is_ending_ = true;
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(MetricsServerTest, AnswersNoOtherPathAndMethod) {
  serve();
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(get("/metrics/../etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ask("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  EXPECT_EQ(num_asked_, 0);
}

TEST_F(MetricsServerTest, RefusesWhatIsNoRequest) {
  serve();
  for (const std::string& nonsense :
       {std::string("nonsense\r\n\r\n"),
        std::string("GET /metrics HTTP/9.9\r\n\r\n"),
        std::string("\0\0\0\0\0\0\0\0\r\n\r\n", 12),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        std::string("GET /metrics HTTP/1.1\r\na b: c\r\n\r\n"),
        std::string("GET /metrics HTTP/1.1\r\nContent-Length: x\r\n\r\n"),
        std::string("GET /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"),
        std::string("GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")})
    EXPECT_THAT(ask(nonsense), StartsWith("HTTP/1.1 400 ")) << nonsense;
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, TakesNoMoreThanEightKilobytes) {
  serve();
  const std::string line(MetricsServer::kMaxRequest, 'x');
  EXPECT_THAT(ask("GET /" + line + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\nA: " + line + line + line + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, ClosesWhatSaysNothing) {
  serve(50ms);
  const UniqueFd silent = connect();
  const UniqueFd slow = connect();
  send(slow, "GET /metr");

  EXPECT_EQ(read_all(silent), "");
  EXPECT_EQ(read_all(slow), "");
}

TEST_F(MetricsServerTest, LetsOthersWaitWhileAllPlacesAreTaken) {
  serve(50ms);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3 * MetricsServer::kMaxConnections; ++i) silent.push_back(connect());

  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, ForgetsACallerThatGoesWhileThePageIsMade) {
  serve();
  is_slow_ = true;
  {
    const UniqueFd caller = connect();
    send(caller, "GET /metrics HTTP/1.1\r\n\r\n");
    while (num_asked_ == 0) std::this_thread::yield();
  }
  asio::post(loop_, [this] { waiting_.front()("late\n"); });

  is_slow_ = false;
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, MayEndBeforeItsConnections) {
  serve();
  const UniqueFd open = connect();
  send(open, "GET /met");
  std::atomic<bool> is_gone{false};
  asio::post(loop_, [&] {
    server_.reset();
    is_gone = true;
  });
  while (!is_gone) std::this_thread::yield();
  send(open, "rics HTTP/1.1\r\n\r\n");

  EXPECT_THAT(read_all(open), Not(HasSubstr("200")));
  EXPECT_EQ(num_asked_, 0);
}

}  // namespace
}  // namespace accel::supervisor::metrics_server_test

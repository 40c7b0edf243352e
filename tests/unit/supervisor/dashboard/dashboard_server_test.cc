#include "runtime/supervisor/dashboard/dashboard_server.h"

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "runtime/supervisor/dashboard/dashboard_curves.h"
#include "runtime/supervisor/dashboard/dashboard_url.h"
#include "runtime/text/text_file.h"
#include "runtime/unique_fd.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::dashboard_server_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kToken(48, 'a');
const std::string kOperatorToken(48, 'o');
constexpr std::chrono::seconds kPatience{30};  // of the test, for what must come

// Server and client take turns on one thread: run() lets the server go on until what is waited for is there.
class DashboardServerTest : public ::testing::Test {
 protected:
  void serve(std::chrono::milliseconds patience = HttpServer::kPatience) {
    auto made = DashboardServer::listen(
        loop_,
        {boost::asio::ip::address_v4::loopback(), 0},
        {.viewers = kToken, .operators = kOperatorToken},
        {.collect = [this](const auto& done) { done(state_); },
         .read_log =
             [this](const LogQuestion& question, const auto& done) {
               if (question.job == "hangs") return hung_.push_back(done);
               done({.text = "of " + question.job});
             },
         .read_curves =
             [this](const auto& job, const auto& done) {
               curves_of_ = job;
               if (is_slow_) return void(late_ = done);
               done(to_json(curves_));
             },
         .deeds = {DashboardDeed::kStop, DashboardDeed::kStacks},
         .act =
             [this](const DashboardAction& action, const auto& done) {
               actions_.push_back(action);
               done({.is_done = action.job != "gone", .text = "said \x1b[2J"});
             }},
        patience);
    ASSERT_TRUE(made) << made.error().what();
    server_ = *std::move(made);
  }

  template <typename Condition>
  bool run_until(Condition is_met) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (!is_met() && std::chrono::steady_clock::now() < limit) loop_.run_one_for(10ms);
    return is_met();
  }

  [[nodiscard]] UniqueFd ask(const std::string& path,
                             const std::string& headers,
                             int buffer = 0,
                             const std::string& method = "GET") const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (buffer > 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string text = method + " " + path + " HTTP/1.1\r\n" + headers + "\r\n";
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return fd;
  }
  static bool read_some(const UniqueFd& fd, std::string& text) {
    char buffer[65536];
    const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    return got == 0;
  }
  // The whole answer.
  std::string get(const std::string& path, const std::string& headers) {
    const UniqueFd fd = ask(path, headers);
    std::string text;
    EXPECT_TRUE(run_until([&] { return read_some(fd, text); })) << text;
    return text;
  }
  std::string post(const std::string& path, const std::string& headers) {
    const UniqueFd fd = ask(path, headers + "Content-Length: 0\r\n", 0, "POST");
    std::string text;
    EXPECT_TRUE(run_until([&] { return read_some(fd, text); })) << text;
    return text;
  }
  // As the page of this server, in the hands of an operator.
  [[nodiscard]] static std::string as_operator(const std::string& origin = "http://localhost:1") {
    return with_token(kOperatorToken) + "Origin: " + origin + "\r\n";
  }
  [[nodiscard]] static std::string with_token(const std::string& token = kToken) {
    return "Host: localhost:1\r\nAuthorization: Bearer " + token + "\r\n";
  }

  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  DashboardState state_;
  DashboardCurves curves_;
  bool is_slow_ = false;  // they are given when a test calls late_
  std::function<void(std::string)> late_;
  std::string curves_of_;  // the job that was asked for last
  std::vector<DashboardAction> actions_;
  std::vector<std::function<void(LogTail)>> hung_;  // answers that are awaited
  std::unique_ptr<DashboardServer> server_;
};

TEST_F(DashboardServerTest, ThePageNeedsNoTokenAndLoadsNothingFromElsewhere) {
  serve();
  for (const char* path : {"/", "/dashboard.js", "/dashboard.css"}) {
    EXPECT_THAT(get(path, "Host: 127.0.0.1\r\n"),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                      HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self'"),
                      HasSubstr("X-Content-Type-Options: nosniff"),
                      Not(HasSubstr("http://")),
                      Not(HasSubstr("innerHTML"))))
        << path;
  }
  EXPECT_THAT(get("/../etc/passwd", "Host: localhost\r\n"), StartsWith("HTTP/1.1 404"));
}

TEST_F(DashboardServerTest, WithoutTheTokenNothingOfAJobIsShown) {
  serve();
  std::string other = kToken;
  other.back() = 'b';
  for (const char* path : {"/api/state", "/api/events", "/api/log?job=a&rank=0"}) {
    EXPECT_THAT(get(path, "Host: localhost\r\n"), StartsWith("HTTP/1.1 401"));
    EXPECT_THAT(get(path, with_token(other)), StartsWith("HTTP/1.1 401"));
    EXPECT_THAT(get(path, with_token(kToken + "a")), StartsWith("HTTP/1.1 401"));
  }
  EXPECT_EQ(server_->refusals().unauthenticated, 9u);
}

TEST_F(DashboardServerTest, PagesOfOtherSitesAndNamesThatAreNotOursAreRefusedAndCounted) {
  serve();
  EXPECT_THAT(get("/api/state", with_token() + "Origin: http://evil.example\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(get("/api/state", with_token() + "Origin: null\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(get("/", "Host: rebound.example:80\r\n"), StartsWith("HTTP/1.1 421"));
  EXPECT_THAT(get("/", ""), StartsWith("HTTP/1.1 421"));
  EXPECT_EQ(server_->refusals().cross_site, 2u);
  EXPECT_EQ(server_->refusals().wrong_host, 2u);

  MetricPage page;
  add_refusals(page, server_->refusals());
  EXPECT_THAT(page.text(), HasSubstr(R"(accel_dashboard_refusals_total{cause="cross_site"} 2)"));
  EXPECT_THAT(get("/api/state", with_token() + "Origin: http://localhost:1\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr(R"("cross_site":2)")));
}

TEST_F(DashboardServerTest, AStreamGivesTheStateAtOnceAndAgain) {
  serve();
  state_.jobs.push_back({.id = "first"});
  const UniqueFd fd = ask("/api/events", with_token());
  std::string text;
  ASSERT_TRUE(run_until([&] {
    read_some(fd, text);
    return text.find("\"first\"") != std::string::npos;
  }));
  state_.jobs.front().id = "second";
  EXPECT_TRUE(run_until([&] {
    read_some(fd, text);
    return text.find("\"second\"") != std::string::npos;
  }));
  EXPECT_THAT(text, HasSubstr("Content-Type: text/event-stream\r\n"));
}

TEST_F(DashboardServerTest, TheEndIsToldAndEndsTheStream) {
  serve();
  const UniqueFd fd = ask("/api/events", with_token());
  ASSERT_TRUE(run_until([&] { return server_->has_streams(); }));
  server_->end();
  std::string text;
  EXPECT_TRUE(run_until([&] { return read_some(fd, text); }));
  EXPECT_THAT(text, HasSubstr(R"("is_over":true)"));
  EXPECT_TRUE(run_until([&] { return !server_->has_streams(); }));
  EXPECT_EQ(server_->refusals().dropped, 0u);
}

// Bad input: a client that never reads.
TEST_F(DashboardServerTest, AClientThatNeverReadsIsDroppedAndCounted) {
  serve(100ms);
  state_.notice.assign(4 << 20, 'x');  // more than the kernel holds for both of them
  const UniqueFd fd = ask("/api/events", with_token(), 4096);

  EXPECT_TRUE(run_until([&] { return server_->refusals().dropped == 1; }));
  EXPECT_FALSE(server_->has_streams());
}

TEST_F(DashboardServerTest, AClientThatGoesIsForgottenAndNotCounted) {
  serve();
  {
    const UniqueFd fd = ask("/api/events", with_token());
    ASSERT_TRUE(run_until([&] { return server_->has_streams(); }));
  }
  EXPECT_TRUE(run_until([&] { return !server_->has_streams(); }));
  EXPECT_EQ(server_->refusals().dropped, 0u);
}

TEST_F(DashboardServerTest, OutputIsOfTheRankThatWasAskedFor) {
  serve();
  EXPECT_THAT(get("/api/log?job=a%2fb&rank=3&stream=err", with_token()),
              HasSubstr(R"("text":"of a/b")"));
  for (const char* query :
       {"", "?job=a", "?rank=1", "?job=a&rank=-1", "?job=a&rank=x", "?job=%zz&rank=0"})
    EXPECT_THAT(get(std::string("/api/log") + query, with_token()), StartsWith("HTTP/1.1 400"))
        << query;
}

TEST_F(DashboardServerTest, AnOperatorActsAndHearsWhatCameOfIt) {
  serve();
  EXPECT_THAT(
      post("/api/stop?job=a%2fb", as_operator()),
      AllOf(StartsWith("HTTP/1.1 200"), HasSubstr(R"({"is_done":true,"text":"said ?[2J"})")));
  EXPECT_THAT(post("/api/stacks?job=gone&rank=3", as_operator()), HasSubstr(R"("is_done":false)"));

  ASSERT_EQ(actions_.size(), 2u);
  EXPECT_EQ(actions_[0].deed, DashboardDeed::kStop);
  EXPECT_EQ(actions_[0].job, "a/b");
  EXPECT_FALSE(actions_[0].kill);
  EXPECT_THAT(actions_[0].from, StartsWith("127.0.0.1:"));
  EXPECT_EQ(actions_[1].deed, DashboardDeed::kStacks);
  EXPECT_EQ(actions_[1].rank, 3);
  EXPECT_THAT(get("/api/offers", with_token(kOperatorToken)),
              HasSubstr(R"({"actions":["stop","stacks"]})"));
}

TEST_F(DashboardServerTest, AKillIsAStopThatSaysSo) {
  serve();
  for (const char* query : {"&kill=1", "&kill=0", "&kill=", "&kill=11"})
    EXPECT_THAT(post(std::string("/api/stop?job=a") + query, as_operator()),
                StartsWith("HTTP/1.1 200"));

  ASSERT_EQ(actions_.size(), 4u);
  EXPECT_TRUE(actions_[0].kill);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_FALSE(actions_[i].kill) << i;
}

// The patience is of what a caller sends and takes: an answer has as long as its handler gives it.
TEST_F(DashboardServerTest, AnAnswerThatTakesItsTimeIsGivenWhateverTheCallerSendsMeanwhile) {
  serve(50ms);
  const UniqueFd fd = ask("/api/log?job=hangs&rank=0", with_token() + "\r\nGET / HTTP/1.1\r\n");
  ASSERT_TRUE(run_until([&] { return hung_.size() == 1; }));
  boost::asio::steady_timer later(loop_, 100ms);
  bool is_later = false;
  later.async_wait([&](const auto&) { is_later = true; });
  ASSERT_TRUE(run_until([&] { return is_later; }));
  ASSERT_EQ(::send(fd.get(), "more", 4, MSG_NOSIGNAL), 4);

  hung_[0]({.text = "at last"});

  std::string text;
  EXPECT_TRUE(run_until([&] { return read_some(fd, text); })) << text;
  EXPECT_THAT(text, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr(R"("text":"at last")")));
}

// Answers that did not come held all places, and the page accepted nobody.
TEST_F(DashboardServerTest, CallersThatGaveUpLeaveTheirPlacesToOthers) {
  serve();
  constexpr std::size_t kMost = DashboardServer::kMaxConnections;
  {
    std::vector<UniqueFd> callers;
    for (std::size_t i = 0; i < kMost; ++i)
      callers.push_back(ask("/api/log?job=hangs&rank=0", with_token()));
    ASSERT_TRUE(run_until([&] { return hung_.size() == kMost; }));
  }
  EXPECT_THAT(get("/api/state", with_token()), StartsWith("HTTP/1.1 200"));
  for (const auto& done : hung_) done({.text = "nobody is there"});
}

TEST_F(DashboardServerTest, AServerThatGoesWaitsForNoAnswer) {
  serve();
  const UniqueFd fd = ask("/api/log?job=hangs&rank=0", with_token());
  ASSERT_TRUE(run_until([&] { return hung_.size() == 1; }));

  server_.reset();

  std::string text;
  EXPECT_TRUE(run_until([&] { return read_some(fd, text); }));
  EXPECT_EQ(text, "");
  hung_[0]({.text = "nobody is there"});
}

TEST_F(DashboardServerTest, AViewerReadsAlone) {
  serve();
  EXPECT_THAT(get("/api/offers", with_token()), HasSubstr(R"({"actions":[]})"));
  EXPECT_THAT(get("/api/state", with_token()), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(post("/api/stop?job=a", with_token() + "Origin: http://localhost:1\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_EQ(server_->refusals().forbidden, 1u);
  EXPECT_THAT(server_->address(), HasSubstr(kToken));
  EXPECT_THAT(server_->operators_address(), HasSubstr(kOperatorToken));
  EXPECT_TRUE(actions_.empty());
}

// Bad input: cross-site requests.
TEST_F(DashboardServerTest, AnActionThatNoPageOfOursAsksForIsRefused) {
  serve();
  EXPECT_THAT(post("/api/stop?job=a", as_operator("http://evil.example")),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(post("/api/stop?job=a", as_operator("null")), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(post("/api/stop?job=a", with_token(kOperatorToken)), StartsWith("HTTP/1.1 403"));
  EXPECT_EQ(server_->refusals().cross_site, 3u);
  EXPECT_THAT(post("/api/stop?job=a", "Host: localhost:1\r\nOrigin: http://localhost:1\r\n"),
              StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(get("/api/stop?job=a", as_operator()), StartsWith("HTTP/1.1 405"));
  EXPECT_TRUE(actions_.empty());
}

TEST_F(DashboardServerTest, AnActionWithoutItsJobOrThatIsNotOfferedIsRefused) {
  serve();
  for (const char* path :
       {"/api/stop", "/api/stop?job=", "/api/stacks?job=a", "/api/stacks?job=a&rank=-1"})
    EXPECT_THAT(post(path, as_operator()), StartsWith("HTTP/1.1 400")) << path;
  for (const char* path : {"/api/drain", "/api/state", "/api/"})
    EXPECT_THAT(post(path, as_operator()), StartsWith("HTTP/1.1 404")) << path;
  EXPECT_THAT(post("/", as_operator()), StartsWith("HTTP/1.1 405"));
  EXPECT_TRUE(actions_.empty());
}

TEST_F(DashboardServerTest, CurvesAreNumbersWithGaps) {
  serve();
  curves_ = {.x_label = "step",
             .panels = {{.metric = "loss\x1b",
                         .curves = {{.run = "a", .points = {{1, 0.5}, {2, std::nan("")}}}}}}};
  EXPECT_THAT(
      get("/api/curves?job=a%2Db", with_token()),
      HasSubstr(
          R"("panels":[{"curves":[{"points":[[1.0,0.5],[2.0,null]],"run":"a"}],"metric":"loss?"}])"));
  EXPECT_EQ(curves_of_, "a-b");
  EXPECT_THAT(get("/api/curves", "Host: localhost\r\n"), StartsWith("HTTP/1.1 401"));
}

// A caller's patience begins when there is something to take.
TEST_F(DashboardServerTest, AnAnswerThatWasLongInComingIsWrittenWhole) {
  constexpr auto kShort = 500ms;
  serve(kShort);
  is_slow_ = true;
  const UniqueFd fd = ask("/api/curves", with_token());
  ASSERT_TRUE(run_until([&] { return static_cast<bool>(late_); }));
  bool is_late = false;
  boost::asio::steady_timer accepted_long_ago(loop_, kShort + 100ms);
  accepted_long_ago.async_wait([&](const auto&) { is_late = true; });
  ASSERT_TRUE(run_until([&] { return is_late; }));

  std::exchange(late_, nullptr)("all of it");

  std::string text;
  EXPECT_TRUE(run_until([&] { return read_some(fd, text); }));
  EXPECT_THAT(text, ::testing::EndsWith("\r\n\r\nall of it"));
}

TEST_F(DashboardServerTest, ALargeAnswerIsWrittenInAsManyPartsAsItTakes) {
  serve();
  curves_.notice = std::string(std::size_t{16} << 20, 'x');  // more than a socket holds
  EXPECT_THAT(get("/api/curves", with_token()), ::testing::EndsWith("\r\n\r\n" + to_json(curves_)));
}

TEST(DashboardUrl, IsForTheUserAlone) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("dashboard.url", "of another start\n");

  ASSERT_TRUE(write_dashboard_url(path, "http://127.0.0.1:1/#token=a"));

  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(*read_text_file(path, 1000, "the file"), "http://127.0.0.1:1/#token=a\n");
  EXPECT_EQ(write_dashboard_url(folder.file("none") + "/url", "").error().code(),
            ErrorCode::kFileIo);
}

// Bad input: hostile log lines.
TEST(LogTail, IsPrintableAndBeginsWithAWholeLine) {
  const test::ScratchFolder folder;
  const std::string path =
      folder.write("stdout.log", "first line\n\x1b[31m<b>red</b>\x1b]0;title\a\xff\nlast\n");

  EXPECT_EQ(read_log_tail(path, 1000).text, "first line\n?[31m<b>red</b>?]0;title??\nlast\n");
  const LogTail last = read_log_tail(path, 8);
  EXPECT_EQ(last.text, "last\n");
  EXPECT_EQ(last.offset + last.text.size(), last.size);
  EXPECT_EQ(read_log_tail(folder.file("none"), 8).notice, "nothing was written yet");
  EXPECT_THAT(read_log_tail(folder.file(""), 8).notice, HasSubstr("cannot be read"));
}

TEST(DashboardState, HasNoTextThatCouldBreakItsLine) {
  DashboardState state;
  state.jobs.push_back({.id = "a\n\ndata: {}", .reason = "\x1b[2J\xff"});
  state.jobs.back().events.push_back({.kind = "failed", .text = "</script>\r\n"});

  const std::string json = to_json(state);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  EXPECT_EQ(json.find('\x1b'), std::string::npos);
}

TEST(OwnHost, IsLocalhostOrANumericAddress) {
  for (const char* host :
       {"localhost", "localhost:29402", "127.0.0.1:1", "[::1]:29402", "10.0.0.7"})
    EXPECT_TRUE(is_own_host(host)) << host;
  for (const char* host :
       {"", "evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", ":80"})
    EXPECT_FALSE(is_own_host(host)) << host;
}

}  // namespace
}  // namespace accel::supervisor::dashboard_server_test

#include "agent/rendezvous/session_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::session_client_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kNever = 100;

// Knows five members, and gives two at a time; or is silent until the call is cancelled.
class Pages final : public v1::Rendezvous::Service {
 public:
  explicit Pages(std::uint32_t fails_from) : fails_from_(fails_from) {}

  grpc::Status GetMembers(grpc::ServerContext* context,
                          const v1::MembersReq* request,
                          v1::MembersPage* page) override {
    while (is_silent && !context->IsCancelled()) std::this_thread::yield();
    if (request->from() >= fails_from_) return {grpc::StatusCode::UNAVAILABLE, "no more today"};
    constexpr std::uint32_t kAll = 5;
    constexpr std::uint32_t kEach = 2;
    for (std::uint32_t i = request->from(); i < kAll && i < request->from() + kEach; ++i)
      page->add_members()->set_node_id(request->job_uuid() + "-" + std::to_string(i));
    if (page->members_size() == kEach) page->set_next(request->from() + kEach);
    return grpc::Status::OK;
  }

  std::atomic<bool> is_silent = false;

 private:
  const std::uint32_t fails_from_;
};

// A coordinator on a socket of this process, and a client of it.
class SessionClientTest : public ::testing::Test {
 protected:
  void serve(std::uint32_t fails_from) {
    pages_ = std::make_unique<Pages>(fails_from);
    const std::string address = "unix:" + folder_.file("socket");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(pages_.get());
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<SessionClient>(
        loop_,
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
        SessionClient::Handlers());
  }

  std::vector<std::string> ask_members() {
    std::vector<std::string> names;
    client_->get_members("job", [&](const std::vector<v1::Member>& members) {
      for (const v1::Member& member : members) names.push_back(member.node_id());
      loop_.stop();
    });
    loop_.restart();
    loop_.run();
    return names;
  }

  const test::ScratchFolder folder_;
  boost::asio::io_context loop_{1};
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  std::unique_ptr<Pages> pages_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<SessionClient> client_;
};

TEST_F(SessionClientTest, TheListOfMembersIsAskedForToItsLastPage) {
  serve(kNever);
  EXPECT_THAT(ask_members(), ElementsAre("job-0", "job-1", "job-2", "job-3", "job-4"));
}

TEST_F(SessionClientTest, OfAListThatCannotBeHadWholeNothingIsTold) {
  serve(2);
  EXPECT_THAT(ask_members(), IsEmpty());
}

TEST_F(SessionClientTest, ItsEndCancelsWhatIsUnderWayAndTheLoopHearsNothingAfterIt) {
  serve(kNever);
  pages_->is_silent = true;
  client_->get_members(
      "job", [](const std::vector<v1::Member>& members) { EXPECT_THAT(members, IsEmpty()); });

  client_.reset();

  EXPECT_EQ(loop_.poll(), 1U);
}

// What a call holds goes with it: its context, and with that the channel, whose end waits for gRPC's threads.
TEST_F(SessionClientTest, ACallEndsOnTheLoopAndNotOnAThreadOfGrpc) {
  constexpr int kTimes = 300;  // it takes a thread of gRPC that is slower than the loop
  serve(0);
  const auto loop_thread = std::this_thread::get_id();
  std::atomic<int> num_elsewhere{0};
  std::atomic<int> num_ended{0};

  for (int i = 0; i < kTimes; ++i) {
    const auto count = [&](const int* held) {
      delete held;
      num_elsewhere += std::this_thread::get_id() == loop_thread ? 0 : 1;
      ++num_ended;
    };
    std::shared_ptr<int> held(new int(i), count);
    client_->get_members(
        "job", [this, held = std::move(held)](const std::vector<v1::Member>&) { loop_.stop(); });
    loop_.restart();
    loop_.run();
    while (num_ended <= i) std::this_thread::yield();
  }

  EXPECT_EQ(num_elsewhere, 0);
}

// Takes sessions, and says to each who leads, if anybody else does.
class Coordinator final : public v1::Rendezvous::Service {
 public:
  explicit Coordinator(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Coordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::CoordMsg, v1::AgentMsg>* stream) override {
    ++num_sessions;
    v1::CoordMsg answer;
    if (leader.empty()) {
      answer.mutable_welcome();
    } else {
      answer.mutable_redirect()->set_leader(leader);
    }
    stream->Write(answer);
    v1::AgentMsg message;
    while (stream->Read(&message)) continue;
    return grpc::Status::OK;
  }

  std::atomic<int> num_sessions = 0;
  std::string leader;

 private:
  std::unique_ptr<grpc::Server> server_;
};

// A client that may meet two coordinators.
class MovingClientTest : public ::testing::Test {
 protected:
  ~MovingClientTest() override {
    bool is_closed = false;
    client_.close([&] { is_closed = true; });
    run_until([&] { return is_closed; });
  }

  [[nodiscard]] std::string address_of(const std::string& name) const {
    return "unix:" + folder_.file(name);
  }
  [[nodiscard]] std::shared_ptr<grpc::Channel> channel_to(const std::string& name) const {
    return grpc::CreateChannel(address_of(name), grpc::InsecureChannelCredentials());
  }

  template <typename Condition>
  void run_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(condition());
  }

  const test::ScratchFolder folder_;
  boost::asio::io_context loop_{1};
  int num_opened_ = 0;
  int num_welcomes_ = 0;
  int num_closed_ = 0;
  SessionClient client_{loop_,
                        channel_to("first"),
                        {.on_open = [this] { ++num_opened_; },
                         .on_message = [this](const v1::CoordMsg&) { ++num_welcomes_; },
                         .on_closed = [this](const grpc::Status&) { ++num_closed_; }}};
};

TEST_F(MovingClientTest, TheOpenStreamEndsAndTheNextOneIsToTheNewCoordinator) {
  Coordinator first(address_of("first"));
  Coordinator second(address_of("second"));
  client_.connect();
  run_until([&] { return num_welcomes_ == 1; });

  client_.move_to(channel_to("second"));
  run_until([&] { return num_welcomes_ == 2; });

  EXPECT_EQ(num_closed_, 1);
  EXPECT_EQ(first.num_sessions, 1);
  EXPECT_EQ(second.num_sessions, 1);
}

TEST_F(MovingClientTest, OneThatWaitsForItsNextTryGoesThereAtOnce) {
  Coordinator second(address_of("second"));
  client_.connect();  // nobody is there
  run_until([&] { return num_closed_ == 1; });

  client_.move_to(channel_to("second"));
  run_until([&] { return num_welcomes_ == 1; });

  EXPECT_EQ(num_opened_, 2);
  EXPECT_EQ(second.num_sessions, 1);
}

// A wait that is over, but has not been heard of, cannot be cancelled any more.
TEST_F(MovingClientTest, OneThatWasAboutToTryOpensOneStreamAndNotTwo) {
  Coordinator second(address_of("second"));
  client_.connect();
  run_until([&] { return num_closed_ == 1; });

  boost::asio::post(loop_, [this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the first pause is shorter
    boost::asio::post(loop_, [this] { client_.move_to(channel_to("second")); });
  });
  run_until([&] { return num_welcomes_ == 1; });
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(200));

  EXPECT_EQ(num_opened_, 2);
  EXPECT_EQ(second.num_sessions, 1);
}

TEST_F(MovingClientTest, TheLeaderThatTheOldCoordinatorNamedCountsNoMore) {
  Coordinator first(address_of("first"));
  Coordinator leader(address_of("leader"));
  Coordinator second(address_of("second"));
  first.leader = address_of("leader");
  client_.follow_redirects([](const std::string& address) -> std::shared_ptr<grpc::Channel> {
    return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  });
  client_.connect();
  run_until([&] { return num_welcomes_ == 1; });
  ASSERT_EQ(client_.leader(), address_of("leader"));

  client_.move_to(channel_to("second"));
  run_until([&] { return num_welcomes_ == 2; });

  EXPECT_EQ(client_.leader(), "");
  EXPECT_EQ(first.num_sessions, 1);
  EXPECT_EQ(leader.num_sessions, 1);
  EXPECT_EQ(second.num_sessions, 1);
}

}  // namespace
}  // namespace accel::agent::session_client_test

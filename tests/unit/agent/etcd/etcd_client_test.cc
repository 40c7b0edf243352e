// Which member of etcd is asked when: members are servers of this process that answer, are silent, or refuse as told.
//
// Nobody waits for a limit that must not pass: such limits are an hour.

#include "agent/etcd/etcd_client.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "tests/support/fake_etcd.h"

namespace accel::agent::etcd_client_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

enum class Manner { kAnswers, kIsSilent, kIsLate, kHasNoLeader, kRunsOutOfTime, kDenies };

// A member with one lease, number 7 with 6 s, and nothing in it.
class FakeMember final : public test::FakeEtcd {
 public:
  explicit FakeMember(Manner manner) : manner_(manner) {}
  ~FakeMember() override { shut_down(); }

  void behave(Manner manner) {
    const std::lock_guard lock(mutex_);
    manner_ = manner;
    changed_.notify_all();
  }

  grpc::Status Range(grpc::ServerContext* context,
                     const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse* response) override {
    response->mutable_header()->set_revision(1);
    return meet(context);
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      if (const grpc::Status met = meet(context); !met.ok()) return met;
      etcdserverpb::LeaseKeepAliveResponse response;
      response.set_id(request.id());
      response.set_ttl(request.id() == 7 ? 6 : 0);
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  [[nodiscard]] int num_asked() const { return num_asked_; }

 private:
  grpc::Status meet(grpc::ServerContext* context) {
    ++num_asked_;
    std::unique_lock lock(mutex_);
    // Cancelled calls are noticed by looking.
    while (manner_ == Manner::kIsSilent && !context->IsCancelled()) changed_.wait_for(lock, 10ms);
    switch (manner_) {
      case Manner::kAnswers:
        return grpc::Status::OK;
      case Manner::kIsLate:  // what the caller sees at its limit
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
      case Manner::kRunsOutOfTime:  // as etcd says it
        return {grpc::StatusCode::UNKNOWN, "context deadline exceeded"};
      case Manner::kDenies:
        return {grpc::StatusCode::PERMISSION_DENIED, "not for you"};
      default:
        return {grpc::StatusCode::UNAVAILABLE, "etcdserver: no leader"};
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Manner manner_;
  std::atomic<int> num_asked_{0};
};

std::shared_ptr<EtcdClient> client_of(std::vector<std::string> endpoints, EtcdTiming timing) {
  return *EtcdClient::make({.endpoints = std::move(endpoints), .tls = {}}, timing);
}

etcdserverpb::RangeRequest request() {
  etcdserverpb::RangeRequest request;
  request.set_key("/");
  return request;
}

constexpr EtcdTiming kNextSoon = {.call_limit = 1h, .ask_next_after = 20ms};
constexpr EtcdTiming kNextNever = {.call_limit = 1h, .ask_next_after = 1h};

TEST(EtcdClient, ASilentMemberIsNotWaitedForWhileAnotherAnswers) {
  FakeMember silent(Manner::kIsSilent);
  FakeMember good(Manner::kAnswers);
  const auto client = client_of({silent.endpoint(), good.endpoint()}, kNextSoon);

  const auto answer = client->range(request());

  ASSERT_TRUE(answer) << (answer ? "" : answer.error().message());
  EXPECT_EQ(answer->header().revision(), 1);
  EXPECT_EQ(good.num_asked(), 1);
}

TEST(EtcdClient, TheMemberThatAnsweredLastIsAskedFirst) {
  FakeMember silent(Manner::kIsSilent);
  FakeMember good(Manner::kAnswers);
  const auto client = client_of({silent.endpoint(), good.endpoint()}, kNextSoon);
  ASSERT_TRUE(client->range(request()));
  const int before = silent.num_asked();

  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client->range(request()));

  EXPECT_EQ(good.num_asked(), 4);
  // On a machine that stands still at times it may be asked all the same, but not first.
  EXPECT_LE(silent.num_asked(), before + 3);
}

TEST(EtcdClient, ARefusedConnectionIsPassedOverAtOnce) {
  FakeMember good(Manner::kAnswers);
  const auto client = client_of({"127.0.0.1:1", good.endpoint()}, kNextNever);

  const auto answer = client->range(request());

  EXPECT_TRUE(answer) << (answer ? "" : answer.error().message());
}

TEST(EtcdClient, AMemberWithoutALeaderIsPassedOverAtOnce) {
  for (const Manner manner : {Manner::kHasNoLeader, Manner::kRunsOutOfTime}) {
    FakeMember lost(manner);
    FakeMember good(Manner::kAnswers);
    const auto client = client_of({lost.endpoint(), good.endpoint()}, kNextNever);

    const auto answer = client->range(request());

    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message());
    EXPECT_EQ(lost.num_asked(), 1);
  }
}

TEST(EtcdClient, AMemberToWhichNoConnectionCouldBeMadeIsAskedLast) {
  FakeMember first(Manner::kHasNoLeader);
  FakeMember third(Manner::kAnswers);
  const auto client = client_of({first.endpoint(), "127.0.0.1:1", third.endpoint()}, kNextNever);
  ASSERT_TRUE(client->range(request()));  // by the third, after the second refused
  third.behave(Manner::kHasNoLeader);
  first.behave(Manner::kAnswers);
  ASSERT_TRUE(client->range(request()));  // by the first
  first.behave(Manner::kHasNoLeader);
  third.behave(Manner::kAnswers);

  // Were the second next, it would be given an hour to come back.
  EXPECT_TRUE(client->range(request()));
}

TEST(EtcdClient, ASilentMemberIsPassedOverForALeaseToo) {
  FakeMember silent(Manner::kIsSilent);
  FakeMember good(Manner::kAnswers);
  const auto client = client_of({silent.endpoint(), good.endpoint()}, kNextSoon);

  const auto kept = client->keep_alive(7);

  ASSERT_TRUE(kept) << (kept ? "" : kept.error().message());
  EXPECT_EQ(kept->id, 7);
  EXPECT_EQ(kept->ttl, 6s);
}

TEST(EtcdClient, WhenNobodyAnswersEachMemberIsNamedWithWhatItSaid) {
  FakeMember late(Manner::kIsLate);
  FakeMember lost(Manner::kHasNoLeader);
  const auto client = client_of({late.endpoint(), lost.endpoint(), "127.0.0.1:1"}, kNextNever);

  const auto answer = client->range(request());

  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kEtcdUnreachable);
  const std::string text = answer.error().render("test");
  EXPECT_THAT(text, HasSubstr(late.endpoint() + ": no answer"));
  EXPECT_THAT(text, HasSubstr(lost.endpoint() + ": etcdserver: no leader"));
  EXPECT_THAT(text, HasSubstr("127.0.0.1:1"));
}

TEST(EtcdClient, ASilentMemberIsGivenUpAtTheLimitOfACall) {
  FakeMember silent(Manner::kIsSilent);
  const auto client = client_of({silent.endpoint()}, {.call_limit = 50ms, .ask_next_after = 10ms});

  const auto answer = client->range(request());

  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kEtcdUnreachable);
  EXPECT_THAT(answer.error().render("test"),
              HasSubstr(silent.endpoint() + ": no answer (a call may take 50 ms)"));
}

TEST(EtcdClient, ARefusalCountsAndNobodyElseIsAsked) {
  FakeMember strict(Manner::kDenies);
  FakeMember good(Manner::kAnswers);
  const auto client = client_of({strict.endpoint(), good.endpoint()}, kNextNever);

  const auto answer = client->range(request());

  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kAuthentication);
  EXPECT_EQ(good.num_asked(), 0);
}

}  // namespace
}  // namespace accel::agent::etcd_client_test

// How launchers find machine 0 by what stands in etcd: an etcd in memory, and time that passes in pauses.

#include "launcher/start/machines/main/etcd_meeting.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::etcd_meeting_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Error kNoEtcd(ErrorCode::kEtcdUnreachable, "etcd does not answer at gpu-01:2379");

class FakeSeat final : public EtcdSeat {
 public:
  const std::string& own_address() const override { return address_; }
  Result<std::string> take(const std::string& place) override {
    if (trouble) return *trouble;
    if (standing.empty()) standing = place;
    return standing;
  }
  Result<void> reach(const std::string&, std::uint16_t port) override {
    if (port == listening) return {};
    return Error(ErrorCode::kStoreUnreachable, "nothing takes connections there");
  }
  std::uint64_t term() const override { return 1; }
  void give_up() override { standing.clear(); }
  std::string successor() const override { return other; }

  std::string standing;
  std::string other;  // has taken it from us
  std::uint16_t listening = 0;
  std::optional<Error> trouble;

 private:
  std::string address_ = "10.0.0.2";
};

class EtcdMeetingTest : public ::testing::Test {
 protected:
  Result<EtcdMeeting> meet() {
    return meet_by_etcd(seat_,
                        kOwn,
                        60s,
                        {.now = [this] { return TimePoint() + passed_; },
                         .pause =
                             [this](Duration pause) {
                               passed_ += pause;
                               return on_pause_ ? on_pause_() : 0;
                             },
                         .say = [this](const std::string& text) { said_.push_back(text); }});
  }

  const MainPlace kOwn = {.id = "b", .host = "gpu-02", .address = "10.0.0.2", .port = 4002};
  const MainPlace kOther = {.id = "a", .host = "gpu-01", .address = "fd00::1", .port = 4001};
  FakeSeat seat_;
  Duration passed_{0};
  std::function<int()> on_pause_;  // gives a signal
  std::vector<std::string> said_;
};

TEST_F(EtcdMeetingTest, TheFirstOneIsMachine0) {
  const auto met = meet();

  ASSERT_TRUE(met);
  EXPECT_TRUE(met->is_ours);
  EXPECT_EQ(met->main.port, 4002);
  EXPECT_EQ(main_place_from(seat_.standing)->host, "gpu-02");
  EXPECT_EQ(passed_, 0s);
}

TEST_F(EtcdMeetingTest, TheOthersJoinWhereItTakesConnections) {
  seat_.standing = to_text(kOther);
  on_pause_ = [this] {  // its store opens a moment later
    seat_.listening = 4001;
    return 0;
  };

  const auto met = meet();

  ASSERT_TRUE(met);
  EXPECT_FALSE(met->is_ours);
  EXPECT_EQ(met->main.address, "fd00::1");
  EXPECT_LT(passed_, 1s);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(EtcdMeetingTest, TheSeatOfOneThatDiedIsTakenWhenItsLeaseIsOver) {
  seat_.standing = to_text(kOther);
  on_pause_ = [this] {
    if (passed_ >= 10s) seat_.standing.clear();
    return 0;
  };

  const auto met = meet();

  ASSERT_TRUE(met);
  EXPECT_TRUE(met->is_ours);
  EXPECT_THAT(said_,
              ElementsAre("machine 0 is gpu-01 ([fd00::1]:4001) by etcd, but nothing takes "
                          "connections there; asking again, for at most 60 s"));
}

TEST_F(EtcdMeetingTest, AMachine0ThatNobodyReachesIsNamedInTheEnd) {
  seat_.standing = to_text(kOther);

  const auto met = meet();

  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code(), ErrorCode::kStoreUnreachable);
  EXPECT_THAT(met.error().message(), HasSubstr("gpu-01 ([fd00::1]:4001)"));
  EXPECT_THAT(met.error().remedy(), HasSubstr("--local_addr"));
  EXPECT_EQ(passed_, 60s);
}

TEST_F(EtcdMeetingTest, AFixedNumberOfMachinesAndARangeAreOneJobOfNeither) {
  MainPlace elastic = kOther;
  elastic.has_coordinator = true;
  seat_.standing = to_text(elastic);
  seat_.listening = kOther.port;

  const auto met = meet();

  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      met.error().message(),
      HasSubstr("gpu-01 ([fd00::1]:4001) by etcd, where --nnodes is a range, and here it is "
                "one number"));
  EXPECT_FALSE(main_place_from(to_text(kOther))->has_coordinator);
}

TEST_F(EtcdMeetingTest, AnEtcdThatComesLateIsWaitedFor) {
  seat_.trouble = kNoEtcd;
  on_pause_ = [this] {
    if (passed_ >= 20s) seat_.trouble.reset();
    return 0;
  };

  EXPECT_TRUE(meet());
  EXPECT_THAT(said_, ElementsAre(HasSubstr("etcd does not answer at gpu-01:2379; asking again")));

  seat_.trouble = kNoEtcd;
  on_pause_ = nullptr;
  const Error error = meet().error();
  EXPECT_EQ(error.code(), ErrorCode::kEtcdUnreachable);
  EXPECT_THAT(error.remedy(), HasSubstr("--rdzv_endpoint"));
}

TEST_F(EtcdMeetingTest, WhatNoWaitingMendsIsToldAtOnce) {
  seat_.trouble = Error(ErrorCode::kAuthentication, "etcd at gpu-01:2379 refused");
  EXPECT_EQ(meet().error().code(), ErrorCode::kAuthentication);

  seat_.trouble.reset();
  for (const char* strange : {"gpu-01:29500",
                              R"({"id":"a"})",
                              R"({"id":"a","host":"x","address":"10.0.0.1","port":0})",
                              R"({"id":"a","host":"x","address":"","port":1})",
                              R"({"id":"a","host":"x","address":"10.0.0.1","port":65536})"}) {
    seat_.standing = strange;
    EXPECT_EQ(meet().error().code(), ErrorCode::kProtocol) << strange;
  }
  EXPECT_EQ(passed_, 0s);
}

TEST_F(EtcdMeetingTest, ASignalEndsIt) {
  seat_.standing = to_text(kOther);
  on_pause_ = [] { return SIGINT; };

  const auto met = meet();

  ASSERT_TRUE(met);
  EXPECT_EQ(met->signal, SIGINT);
}

TEST_F(EtcdMeetingTest, ASeatThatIsLostNamesWhoHasIt) {
  EXPECT_FALSE(find_lost_seat(seat_));

  seat_.other = to_text(kOther);

  const auto lost = find_lost_seat(seat_);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), ErrorCode::kCoordinatorLost);
  EXPECT_THAT(lost->message(), HasSubstr("made gpu-01 ([fd00::1]:4001) machine 0"));
}

}  // namespace
}  // namespace accel::launcher::etcd_meeting_test

// When a coordinator's host leads, and what it does with requests when it does not.

#include "agent/rendezvous/coordinator_host.h"

#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

namespace accel::agent::coordinator_host_test {
namespace {

using namespace std::chrono_literals;

CoordinatorHostOptions quiet_options() {
  CoordinatorHostOptions options;
  options.authenticate = [](const CallIdentity&) {
    return Result<Caller>(Error(ErrorCode::kAuthentication, "nobody calls"));
  };
  options.report = [](const Report&) {};
  options.audit = [](const std::string&) {};
  return options;
}

StartJob start_of(const std::string& uuid) {
  StartJob request;
  request.request_id = uuid;
  request.job.job_uuid = uuid;
  request.job.job_id = uuid;
  return request;
}

class CoordinatorHostTest : public ::testing::Test {
 protected:
  void lead() { host_.lead({found(7, {}, SteadyClock().now()), nullptr, term_}); }

  boost::asio::io_context loop_;
  CoordinatorHost host_{loop_, quiet_options()};
  std::shared_ptr<LeadTerm> term_ = std::make_shared<LeadTerm>(SteadyClock().now() + 1h);
};

TEST_F(CoordinatorHostTest, WhileItsTermLastsItTakesJobs) {
  lead();

  host_.handle(start_of("one"));

  EXPECT_TRUE(host_.is_leading());
  EXPECT_EQ(host_.state().jobs.size(), 1U);
}

// What a process that was stopped for long meets first may be a request; nobody has told it yet that another one leads.
TEST_F(CoordinatorHostTest, Fault41AfterItsTermItDoesNotLeadThoughNobodyHasSaidSo) {
  lead();
  term_->end();

  EXPECT_FALSE(host_.is_leading());
  host_.handle(start_of("one"));
  EXPECT_TRUE(host_.state().jobs.empty());
}

TEST_F(CoordinatorHostTest, ItLeadsAgainWithTheNextReign) {
  lead();
  host_.follow({"10.0.0.1:29400", 8});
  EXPECT_FALSE(host_.is_leading());

  lead();

  EXPECT_TRUE(host_.is_leading());
}

// Of a job that outlives its leaders: whoever has heard of a later one says so with each message.
TEST(DeposedHost, AnAgentOfALaterLeaderDeposesItOnce) {
  boost::asio::io_context loop;
  std::vector<std::string> deposed_by;
  CoordinatorHostOptions options = quiet_options();
  options.deposed = [&](const std::string& why) { deposed_by.push_back(why); };
  CoordinatorHost host(loop, std::move(options));
  host.lead({found(7, {}, SteadyClock().now()), nullptr, nullptr});

  for (int i = 0; i < 2; ++i)
    host.handle(FromAgent{.connection = 1, .message = {.fence = {.leader_epoch = 8}}});

  EXPECT_FALSE(host.is_leading());
  EXPECT_EQ(deposed_by, std::vector<std::string>{"an agent follows leader epoch 8, this is 7"});
}

// The coordinator of a launcher cannot follow: its launcher hears of it, and ends.
TEST(DeposedHost, WithNobodyToFollowItOnlyReports) {
  boost::asio::io_context loop;
  std::vector<ReportKind> reported;
  CoordinatorHostOptions options = quiet_options();
  options.report = [&](const Report& report) { reported.push_back(report.kind); };
  CoordinatorHost host(loop, std::move(options));
  host.lead({found(7, {}, SteadyClock().now()), nullptr, nullptr});

  host.handle(FromAgent{.connection = 1, .message = {.fence = {.leader_epoch = 8}}});

  EXPECT_EQ(reported, std::vector{ReportKind::kOutdated});
  EXPECT_TRUE(host.state().is_outdated);
}

}  // namespace
}  // namespace accel::agent::coordinator_host_test

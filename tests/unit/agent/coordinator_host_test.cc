// When a coordinator's host leads, and what it does with requests when it does not.

#include "agent/rendezvous/coordinator_host.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

namespace accel::agent {
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

}  // namespace
}  // namespace accel::agent

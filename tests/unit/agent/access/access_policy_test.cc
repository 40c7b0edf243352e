#include "agent/access/access_policy.h"

#include <gmock/gmock.h>

#include "agent/access/ticket_book.h"
#include "tests/support/manual_clock.h"

namespace accel::agent::access_policy_test {
namespace {

using namespace std::chrono_literals;

Caller local(uid_t uid) {
  return {.role = Role::kLocal, .uid = uid, .name = "uid " + std::to_string(uid)};
}

TEST(AccessPolicy, AUserSeesAndStopsItsOwnJobsAlone) {
  const AgentConfig config;
  const AccessPolicy policy(config, 0);
  EXPECT_TRUE(policy.allows(local(1000), Deed::kControl, 1000));
  EXPECT_FALSE(policy.allows(local(1000), Deed::kSee, 1001));
  EXPECT_TRUE(policy.allows(local(0), Deed::kControl, 1001));
  EXPECT_FALSE(policy.allows_operation(local(1000)));
}

TEST(AccessPolicy, AViewerLooksAndAnOperatorActs) {
  const AgentConfig config;
  const AccessPolicy policy(config, 0);
  const Caller viewer = {.role = Role::kViewer, .name = "v"};
  const Caller operator_ = {.role = Role::kOperator, .name = "o"};
  const Caller node = {.role = Role::kNode, .name = "n"};
  EXPECT_TRUE(policy.allows(viewer, Deed::kSee, 1000));
  EXPECT_FALSE(policy.allows(viewer, Deed::kControl, 1000));
  EXPECT_FALSE(policy.allows_operation(viewer));
  EXPECT_TRUE(policy.allows(operator_, Deed::kControl, 1000));
  EXPECT_FALSE(policy.allows(node, Deed::kSee, 1000));
  EXPECT_FALSE(policy.user_for(viewer, "", "ann"));
  EXPECT_FALSE(policy.user_for(node, "", "ann"));
}

TEST(AccessPolicy, ARemoteStartNeedsItsLineInTheConfiguration) {
  AgentConfig config;
  const Caller ann = {.role = Role::kOperator, .name = "accel://default/operator/ann"};
  EXPECT_FALSE(AccessPolicy(config, 0).user_for(ann, "", "ann"));
  config.remote_users[ann.name] = {"ann"};
  EXPECT_TRUE(AccessPolicy(config, 0).user_for(ann, "", "ann"));
  EXPECT_FALSE(AccessPolicy(config, 0).user_for(ann, "", "bob"));
}

TEST(AccessPolicy, NobodyBecomesASystemUserFromAfar) {
  AgentConfig config;
  config.allow_root = true;
  const AccessPolicy policy(config, 0);
  EXPECT_FALSE(policy.check_uid(0, /*is_remote=*/true));
  EXPECT_FALSE(policy.check_uid(33, /*is_remote=*/true));
  EXPECT_TRUE(policy.check_uid(1000, /*is_remote=*/true));
}

TEST(AccessPolicy, RootRunsNoJobsUnlessAllowedTo) {
  AgentConfig config;
  EXPECT_FALSE(AccessPolicy(config, 0).check_uid(0, false));
  config.allow_root = true;
  EXPECT_TRUE(AccessPolicy(config, 0).check_uid(0, false));
}

TEST(AccessPolicy, AnAgentWithoutRootServesItsOwnUserAlone) {
  const AgentConfig config;
  EXPECT_TRUE(AccessPolicy(config, 1000).check_uid(1000, false));
  EXPECT_FALSE(AccessPolicy(config, 1000).check_uid(1001, false));
}

TEST(AccessPolicy, ACertificateNameGivesTheRoleWithinItsCluster) {
  ASSERT_TRUE(parse_certificate_name("accel://c1/node/n1", "c1"));
  EXPECT_EQ(parse_certificate_name("accel://c1/operator/ann", "c1")->role, Role::kOperator);
  EXPECT_EQ(parse_certificate_name("accel://c1/launcher/n1", "c1")->role, Role::kLauncher);
  for (const char* bad : {"",
                          "accel://c2/node/n1",
                          "accel://c1/root/n1",
                          "accel://c1/node/",
                          "accel://c1/node/a/b",
                          "http://c1/node/n1",
                          "accel://c1/node"}) {
    EXPECT_FALSE(parse_certificate_name(bad, "c1")) << bad;
  }
}

TEST(TicketBook, ATicketIsGoodForItsUserUntilItIsOver) {
  test::ManualClock clock;
  TicketBook book(clock);
  const auto ticket = book.issue({.uid = 1000, .gid = 1000, .pid = 7});
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ticket->size(), 64U);
  ASSERT_TRUE(book.find(*ticket));
  EXPECT_EQ(book.find(*ticket)->uid, 1000U);
  EXPECT_FALSE(book.find(""));
  EXPECT_FALSE(book.find(ticket->substr(1)));
  clock.advance(30s);
  EXPECT_FALSE(book.find(*ticket));
}

TEST(TicketBook, ATicketThatWasTakenBackIsWorthNothing) {
  test::ManualClock clock;
  TicketBook book(clock);
  const auto ticket = book.issue({.uid = 1000, .gid = 1000, .pid = 7});
  book.take_back(*ticket);
  EXPECT_FALSE(book.find(*ticket));
}

TEST(TicketBook, TooManyTicketsAreRefusedUntilSomeAreOver) {
  test::ManualClock clock;
  TicketBook book(clock);
  for (std::size_t i = 0; i < TicketBook::kMaxTickets; ++i) ASSERT_TRUE(book.issue({}));
  EXPECT_FALSE(book.issue({}));
  clock.advance(31s);
  EXPECT_TRUE(book.issue({}));
}

TEST(AccessPolicy, JobsOfManyNodesNeverRunAsRootOrASystemUser) {
  AgentConfig config;
  config.allow_root = true;
  const AccessPolicy policy(config, 0);
  EXPECT_FALSE(policy.check_cluster_user("root", 0));
  EXPECT_FALSE(policy.check_cluster_user("daemon", 1));
  EXPECT_TRUE(policy.check_cluster_user("ann", 1000));
}

TEST(AccessPolicy, JobsOfManyNodesObeyAllowUsersAndTheAgentsOwnUid) {
  AgentConfig config;
  config.allow_users = {"ann"};
  EXPECT_TRUE(AccessPolicy(config, 0).check_cluster_user("ann", 1000));
  EXPECT_FALSE(AccessPolicy(config, 0).check_cluster_user("bob", 1001));
  EXPECT_FALSE(AccessPolicy(config, 1001).check_cluster_user("ann", 1000));
}

// A launcher takes part in one job; an agent vouches for the users of the whole cluster.
TEST(Roles, WhoIsTakenForWhatIsThisTable) {
  struct Row {
    Role role;
    bool cluster_call, agent_session, job_session, agent, job_host;
  };
  constexpr Row kRows[] = {
      {Role::kNode, true, true, true, true, true},
      {Role::kLauncher, false, false, true, false, true},
      {Role::kOperator, false, false, false, false, false},
      {Role::kViewer, false, false, false, false, false},
      {Role::kLocal, false, false, false, false, false},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(static_cast<int>(row.role));
    EXPECT_EQ(admits(Place::kClusterCall, row.role), row.cluster_call);
    EXPECT_EQ(admits(Place::kAgentSession, row.role), row.agent_session);
    EXPECT_EQ(admits(Place::kJobSession, row.role), row.job_session);
    EXPECT_EQ(admits(Place::kAgent, row.role), row.agent);
    EXPECT_EQ(admits(Place::kJobHost, row.role), row.job_host);
  }
}

TEST(Roles, ALauncherNeitherSeesNorActsAtAnAgent) {
  const AgentConfig config;
  const AccessPolicy policy(config, 0);
  const Caller launcher = {.role = Role::kLauncher, .name = "accel://default/launcher/n1"};

  EXPECT_FALSE(policy.allows(launcher, Deed::kSee, 1000));
  EXPECT_FALSE(policy.allows(launcher, Deed::kControl, 1000));
  EXPECT_FALSE(policy.allows_operation(launcher));
  EXPECT_FALSE(policy.user_for(launcher, "", "ann"));
}

}  // namespace
}  // namespace accel::agent::access_policy_test

// A spec goes over a session once, and the node has it whole each time that it is named.

#include "agent/rendezvous/job_specs.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "accel/v1/rendezvous.grpc.pb.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/member_session.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::job_specs_test {
namespace {

using namespace std::chrono_literals;

v1::JobSpec spec_of(const std::string& uuid, std::size_t bytes = 8) {
  v1::JobSpec spec;
  spec.set_job_id(uuid);
  spec.set_job_uuid(uuid);
  spec.set_user("ada");
  spec.set_min_nodes(1);
  spec.set_max_nodes(1);
  spec.add_argv(std::string(bytes, 'x'));
  for (int i = 0; i < 20; ++i) (*spec.mutable_env())["NAME_" + std::to_string(i)] = "value";
  return spec;
}

std::shared_ptr<const JobDescription> job_of(const v1::JobSpec& spec) {
  return std::make_shared<const JobDescription>(describe_job(spec));
}

// Both ends of one session.
class Session {
 public:
  explicit Session(SpecPacker& packer) : sent_(packer) {}

  struct Arrived {
    bool was_whole = false;  // on the way
    bool is_complete = false;
    v1::JobSpec spec;
  };
  Arrived assign(const std::shared_ptr<const JobDescription>& job) {
    v1::CoordMsg message;
    sent_.put(*message.mutable_assign(), job);
    Arrived arrived{.was_whole = message.assign().has_spec()};
    arrived.is_complete = held_.complete(message);
    arrived.spec = message.assign().spec();
    return arrived;
  }

  void forget_at_the_node() { held_.clear(); }

 private:
  SpecsSent sent_;
  SpecsHeld held_;
};

TEST(JobSpecs, OfOneJobOnlyTheFirstMessageIsWholeAndEachArrivesSo) {
  SpecPacker packer;
  Session session(packer);
  const auto job = job_of(spec_of("job"));

  EXPECT_TRUE(session.assign(job).was_whole);
  for (int generation = 2; generation < 5; ++generation) {
    const auto arrived = session.assign(job);
    EXPECT_FALSE(arrived.was_whole);
    EXPECT_TRUE(arrived.is_complete);
    EXPECT_EQ(arrived.spec.SerializeAsString().size(), spec_of("job").SerializeAsString().size());
    EXPECT_EQ(arrived.spec.env().at("NAME_7"), "value");
  }
}

TEST(JobSpecs, AnotherSessionAndAnotherLeaderBeginWithTheWholeSpec) {
  SpecPacker packer;
  SpecPacker of_the_next_leader;
  const auto job = job_of(spec_of("job"));
  (void)Session(packer).assign(job);

  EXPECT_TRUE(Session(packer).assign(job).was_whole);
  EXPECT_TRUE(Session(of_the_next_leader).assign(job).was_whole);
}

TEST(JobSpecs, AJobThatWasScaledIsAnotherSpec) {
  SpecPacker packer;
  Session session(packer);
  const auto job = job_of(spec_of("job"));
  (void)session.assign(job);
  JobDescription scaled = *job;
  scaled.max_nodes = 7;

  const auto arrived = session.assign(std::make_shared<const JobDescription>(scaled));

  EXPECT_TRUE(arrived.was_whole);
  EXPECT_EQ(arrived.spec.max_nodes(), 7U);
}

// A record of any build holds the spec, from which the digest is made anew.
TEST(JobSpecs, TheDigestIsThatOfTheSpecWhicheverCoordinatorMakesIt) {
  SpecPacker one;
  SpecPacker other;
  EXPECT_EQ(one.pack(job_of(spec_of("job"))).sha256, other.pack(job_of(spec_of("job"))).sha256);

  v1::JobSpec of_somebody_else = spec_of("job");
  of_somebody_else.set_user("eve");
  EXPECT_NE(one.pack(job_of(spec_of("job"))).sha256, one.pack(job_of(of_somebody_else)).sha256);
}

TEST(JobSpecs, BothEndsForgetTheSameSpecs) {
  SpecPacker packer;
  Session session(packer);
  std::vector<std::shared_ptr<const JobDescription>> jobs;
  for (std::size_t i = 0; i < 100; ++i)
    jobs.push_back(job_of(spec_of("job-" + std::to_string(i), i % 7 == 0 ? 1'000'000 : 100)));

  int num_whole = 0;
  for (std::size_t i = 0; i < 1'000; ++i) {
    const auto& job = jobs[(i * i + i / 3) % jobs.size()];
    const auto arrived = session.assign(job);
    ASSERT_TRUE(arrived.is_complete) << "message " << i;
    ASSERT_EQ(arrived.spec.job_id(), job->job_id);
    num_whole += arrived.was_whole ? 1 : 0;
  }

  EXPECT_GT(num_whole, 100);  // more than there are: some were forgotten
  EXPECT_LT(num_whole, 1'000);
}

TEST(JobSpecs, ASpecThatIsLargerThanTheWindowGoesWholeEachTime) {
  SpecPacker packer;
  Session session(packer);
  const auto job = job_of(spec_of("job", kMostSpecBytes + 1));

  for (int i = 0; i < 2; ++i) {
    const auto arrived = session.assign(job);
    EXPECT_TRUE(arrived.was_whole);
    EXPECT_TRUE(arrived.is_complete);
  }
}

TEST(JobSpecs, ADigestThatIsNotHeldIsNoSpec) {
  SpecPacker packer;
  Session session(packer);
  const auto job = job_of(spec_of("job"));
  (void)session.assign(job);

  session.forget_at_the_node();

  EXPECT_FALSE(session.assign(job).is_complete);
}

// Asks each session to take part: the first one by a digest that it never had, the next one with the spec.
class ForgetfulCoordinator final : public v1::Rendezvous::Service {
 public:
  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::CoordMsg, v1::AgentMsg>* stream) override {
    const bool is_first = num_sessions++ == 0;
    v1::AgentMsg hello;
    if (!stream->Read(&hello)) return grpc::Status::OK;
    v1::CoordMsg answer;
    *answer.mutable_fence() = hello.fence();
    answer.mutable_fence()->set_leader_epoch(1);
    answer.mutable_welcome()->mutable_beat_every()->set_seconds(60);
    stream->Write(answer);
    answer.mutable_invite()->set_spec_sha256(std::string(32, 'd'));
    if (!is_first) *answer.mutable_invite()->mutable_spec() = spec_of("job");
    stream->Write(answer);
    v1::AgentMsg message;
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

  std::atomic<int> num_sessions = 0;
};

TEST(JobSpecsOfASession, ANodeThatLacksASpecBeginsAnotherSessionAndHasItThere) {
  const test::ScratchFolder folder;
  const std::string address = "unix:" + folder.file("socket");
  ForgetfulCoordinator coordinator;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const auto server = builder.BuildAndStart();
  boost::asio::io_context loop{1};
  std::string turned_away;
  std::string considered;
  MemberSession session(
      loop,
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
      {.node = {.node_id = "n1", .hostname = "n1"}, .token_key = "", .job = std::nullopt},
      {.on_action =
           [&](const MemberAction& action) {
             if (const auto* asked = std::get_if<ConsiderJob>(&action))
               considered = to_job_spec(*asked->job).argv(0);
           },
       .on_beat = [] {},
       .on_connection = [](bool, const std::string&) {},
       .on_turned_away = [&](const std::string& why) { turned_away = why; }});
  const auto run_until = [&](const auto& condition) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop.restart();
      loop.run_one_for(20ms);
    }
    EXPECT_TRUE(condition());
  };

  session.connect();
  run_until([&] { return !considered.empty(); });

  EXPECT_EQ(considered, "xxxxxxxx");
  EXPECT_EQ(coordinator.num_sessions, 2);
  EXPECT_EQ(turned_away, "the coordinator names a job's spec that it has not sent");
  bool is_closed = false;
  session.close([&] { is_closed = true; });
  run_until([&] { return is_closed; });
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace accel::agent::job_specs_test

#include <csignal>
#include <cstdlib>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "agent/access/ticket_book.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/token_proof.h"
#include "agent/rendezvous/wire.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::rendezvous_test {
namespace {

TEST(TokenProof, OnlyTheSameTokenNonceNodeAndJobGiveTheProof) {
  const std::string key = token_key("a token of the cluster");
  const std::string nonce = random_bytes(kNonceBytes);
  const std::string proof = prove_token(key, nonce, "n1", "job");
  EXPECT_TRUE(is_proof(proof, key, nonce, "n1", "job"));
  EXPECT_FALSE(is_proof(proof, token_key("another token"), nonce, "n1", "job"));
  EXPECT_FALSE(is_proof(proof, key, random_bytes(kNonceBytes), "n1", "job"));
  EXPECT_FALSE(is_proof(proof, key, nonce, "n2", "job"));
  EXPECT_FALSE(is_proof(proof, key, nonce, "n1", "job2"));
  EXPECT_FALSE(is_proof("", key, nonce, "n1", "job"));
  // The parts are kept apart: moving a letter from one to the next gives another proof.
  EXPECT_FALSE(is_proof(prove_token(key, nonce, "n1j", "ob"), key, nonce, "n1", "job"));
}

TEST(TokenProof, OfACoordinatorAndOfANodeAreApart) {
  const std::string key = token_key("a token of the cluster");
  const std::string nonce = random_bytes(kNonceBytes);
  const std::string proof = prove_coordinator(key, nonce, "n1");
  EXPECT_TRUE(is_coordinator_proof(proof, key, nonce, "n1"));
  EXPECT_FALSE(is_coordinator_proof(proof, token_key("another token"), nonce, "n1"));
  EXPECT_FALSE(is_coordinator_proof(proof, key, random_bytes(kNonceBytes), "n1"));
  EXPECT_FALSE(is_coordinator_proof(proof, key, nonce, "n2"));
  EXPECT_FALSE(is_coordinator_proof("", key, nonce, "n1"));
  // What a node would prove to whoever chose its nonce to that end.
  const std::string chosen = std::string("coordinator\0", 12) + nonce;
  for (const std::string& asked : {nonce, chosen, chosen.substr(0, kNonceBytes)}) {
    for (const char* job : {"", "n1", "job"})
      EXPECT_FALSE(is_coordinator_proof(prove_token(key, asked, "n1", job), key, nonce, "n1"));
  }
}

TEST(TokenProof, IsTheHmacThatTheProtocolNames) {
  // echo -n secret | sha256sum, then openssl dgst -sha256 -mac HMAC over "nonce\0n\0j".
  EXPECT_EQ(to_hex(token_key("secret")),
            "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b");
}

TEST(TokenFile, MustBeLongAndPrivate) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("token", "  0123456789abcdef\n");
  ::chmod(path.c_str(), 0644);
  EXPECT_FALSE(read_token(path));
  ::chmod(path.c_str(), 0600);
  const auto token = read_token(path);
  ASSERT_TRUE(token);
  EXPECT_EQ(*token, "0123456789abcdef");
  const std::string short_one = folder.write("short", "abc");
  ::chmod(short_one.c_str(), 0600);
  EXPECT_FALSE(read_token(short_one));
  EXPECT_FALSE(read_token(folder.file("missing")));
}

AgentMessage from_agent(decltype(AgentMessage::body) body) {
  return {.fence = {.leader_epoch = 3, .generation = 2, .session_id = "s", .seq = 9},
          .mono = std::chrono::nanoseconds(77),
          .body = std::move(body)};
}

template <typename T>
T round_trip(T body) {
  const auto back = from_proto(to_proto(from_agent(body)));
  EXPECT_TRUE(back);
  EXPECT_EQ(back->fence.seq, 9U);
  EXPECT_EQ(back->fence.session_id, "s");
  EXPECT_EQ(back->mono.count(), 77);
  return std::get<T>(back->body);
}

TEST(Wire, WhatAnAgentSaysArrivesAsItWasSaid) {
  Hello hello = {.build = "b"};
  hello.node = {.node_id = "n1",
                .boot_id = "boot",
                .hostname = "h",
                .addresses = {"10.0.0.1"},
                .slots = 4,
                .endpoint = "10.0.0.1:29400",
                .rack = "r"};
  hello.running = {{"job", 3, 2, MemberPhase::kStopped}};
  const Hello heard = round_trip(hello);
  EXPECT_EQ(heard.node.node_id, "n1");
  EXPECT_EQ(heard.node.slots, 4);
  EXPECT_EQ(heard.node.endpoint, "10.0.0.1:29400");
  EXPECT_EQ(heard.running.at(0).phase, MemberPhase::kStopped);

  EXPECT_EQ(round_trip(Join{.job_uuid = "job", .slots = 2, .preferred_index = -1}).preferred_index,
            -1);
  const Join join =
      round_trip(Join{.job_uuid = "job", .generation = 7, .restarts = 2, .out_of_memory = 1});
  EXPECT_EQ(join.generation, 7u);
  EXPECT_EQ(join.restarts, 2);
  EXPECT_EQ(join.out_of_memory, 1);
  EXPECT_EQ(round_trip(Ready{.job_uuid = "job", .store_endpoint = "h:1"}).store_endpoint, "h:1");
  EXPECT_EQ(
      round_trip(Ready{.job_uuid = "job", .failed_checks = {{"gpu", "none"}}}).failed_checks.size(),
      1U);
  EXPECT_TRUE(round_trip(Ready{.job_uuid = "job", .failed_checks = {{"preflight", "none", true}}})
                  .failed_checks.at(0)
                  .is_of_job);
  EXPECT_EQ(round_trip(Beat{.jobs = {{.job_uuid = "job",
                                      .generation = 5,
                                      .phase = MemberPhase::kRunning,
                                      .min_step = -1,
                                      .max_step = 8}}})
                .jobs.at(0)
                .max_step,
            8);
  EXPECT_EQ(round_trip(Beat{.slots_taken = 3}).slots_taken, 3);
  JobBeat progress = {.job_uuid = "job"};
  progress.stalled_ranks = {3, 2};
  progress.last_progress_age = Milliseconds(900);
  progress.ranks = {{7, Milliseconds(1'200)}, {-1, Milliseconds(0)}};
  const JobBeat told = round_trip(Beat{.jobs = {progress}}).jobs.at(0);
  EXPECT_EQ(told.stalled_ranks, progress.stalled_ranks);
  EXPECT_EQ(told.last_progress_age, progress.last_progress_age);
  ASSERT_EQ(told.ranks.size(), 2U);
  EXPECT_EQ(told.ranks[0].step, 7);
  EXPECT_EQ(told.ranks[0].silent_for, Milliseconds(1'200));
  EXPECT_EQ(told.ranks[1].step, -1);
  supervisor::WorkerExit hang;
  hang.cause = supervisor::ExitCause::kHang;
  hang.detail = "no progress for 31 s";
  const WorkerEvent hung = round_trip(WorkerEvent{.job_uuid = "job", .exit = hang});
  EXPECT_EQ(hung.exit->cause, supervisor::ExitCause::kHang);
  EXPECT_EQ(hung.exit->detail, hang.detail);
  supervisor::WorkerExit exit;
  exit.cause = supervisor::ExitCause::kSignaled;
  exit.signal = SIGSEGV;
  exit.global_rank = 5;
  exit.seen_at = std::chrono::nanoseconds(11);
  const WorkerEvent event = round_trip(WorkerEvent{.job_uuid = "job",
                                                   .phase = WorkerPhase::kExited,
                                                   .global_rank = 5,
                                                   .local_rank = 1,
                                                   .step = 4,
                                                   .exit = exit});
  ASSERT_TRUE(event.exit);
  EXPECT_EQ(event.exit->signal, SIGSEGV);
  EXPECT_EQ(event.exit->global_rank, 5);
  EXPECT_EQ(event.exit->seen_at.count(), 11);
  EXPECT_EQ(round_trip(Stopped{.job_uuid = "job", .num_unkillable = 1}).num_unkillable, 1);
  EXPECT_EQ(round_trip(Decline{.job_uuid = "job", .reason = "no such user"}).reason,
            "no such user");
  EXPECT_EQ(
      round_trip(NodeAlarm{.kind = AlarmKind::kDeviceLost, .job_uuid = "job", .text = "x"}).kind,
      AlarmKind::kDeviceLost);
}

template <typename T>
T back_again(T body) {
  const auto back = from_proto(to_proto(
      CoordinatorMessage{.fence = {.leader_epoch = 1, .generation = 4}, .body = std::move(body)}));
  EXPECT_TRUE(back);
  EXPECT_EQ(back->fence.generation, 4U);
  return std::get<T>(back->body);
}

TEST(Wire, WhatTheCoordinatorSaysArrivesAsItWasSaid) {
  JobDescription job;
  job.job_id = job.job_uuid = "job";
  job.min_nodes = 2;
  job.max_nodes = 4;
  v1::JobSpec payload;
  payload.add_argv("prog");
  payload.set_token_key("secret");
  payload.mutable_stop()->mutable_grace()->set_seconds(7);
  job.payload = std::make_shared<const std::string>(payload.SerializeAsString());
  Assign assign;
  assign.job = std::make_shared<const JobDescription>(job);
  assign.node_index = 1;
  assign.first_rank = 2;
  assign.num_ranks = 2;
  assign.world_size = 4;
  assign.num_nodes = 2;
  assign.restart_count = 3;
  assign.out_of_memory = 1;
  const Assign heard = back_again(assign);
  EXPECT_EQ(heard.first_rank, 2);
  EXPECT_EQ(heard.restart_count, 3);
  EXPECT_EQ(heard.out_of_memory, 1);
  EXPECT_EQ(heard.job->max_nodes, 4);
  EXPECT_EQ(heard.job->stop.grace.count(), 7'000);
  EXPECT_EQ(back_again(Invite{assign.job}).job->max_nodes, 4);
  const v1::JobSpec carried = to_job_spec(*heard.job);
  EXPECT_EQ(carried.argv(0), "prog");
  EXPECT_TRUE(carried.token_key().empty());
  EXPECT_EQ(back_again(Stop{.job_uuid = "j",
                            .grace = Milliseconds(1'500),
                            .reason = StopReason::kStale,
                            .kill = true})
                .grace.count(),
            1'500);
  EXPECT_EQ(back_again(Notice{.job_uuid = "j", .kind = NoticeKind::kCancelled}).kind,
            NoticeKind::kCancelled);
  EXPECT_EQ(back_again(Fenced{.reason = FenceReason::kReplaced}).reason, FenceReason::kReplaced);
  EXPECT_EQ(back_again(Start{.job_uuid = "j", .assigned_epoch = 9, .store_endpoint = "h:2"})
                .assigned_epoch,
            9U);
}

TEST(Wire, ImpossibleNumbersBecomePossibleOnesOrNothing) {
  v1::CoordMsg message;
  message.mutable_assign()->set_count(4'000'000'000U);
  EXPECT_FALSE(from_proto(message));
  message.mutable_assign()->set_count(2);
  message.mutable_assign()->set_world(1);
  message.mutable_assign()->set_nodes(1);
  EXPECT_FALSE(from_proto(message));
  message.mutable_assign()->set_world(2);
  message.mutable_assign()->set_out_of_memory(4);  // of no restarts
  EXPECT_EQ(std::get<Assign>(from_proto(message)->body).out_of_memory, 0);
  EXPECT_FALSE(from_proto(v1::CoordMsg()));
  EXPECT_FALSE(from_proto(v1::AgentMsg()));
  v1::AgentMsg beat;
  beat.set_mono_ns(~0ULL);
  v1::JobBeat& job = *beat.mutable_beat()->add_jobs();
  job.set_phase(static_cast<v1::MemberPhase>(99));
  job.set_min_step(-5);
  const auto heard = from_proto(beat);
  ASSERT_TRUE(heard);
  EXPECT_GE(heard->mono.count(), 0);
  EXPECT_EQ(std::get<Beat>(heard->body).jobs.at(0).phase, MemberPhase::kNone);
  EXPECT_EQ(std::get<Beat>(heard->body).jobs.at(0).min_step, -1);
}

}  // namespace
}  // namespace accel::agent::rendezvous_test

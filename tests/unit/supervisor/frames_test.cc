#include "runtime/supervisor/protocol/frames.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/socket.h>

#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/protocol/json_bytes.h"

namespace accel::supervisor::frames_test {
namespace {

using Status = FrameSocket::Received::Status;

std::string every_byte() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  return bytes;
}

template <typename T>
T round_trip(const T& event) {
  auto decoded = decode_event(encode(HostEvent(event)));
  EXPECT_TRUE(decoded.has_value()) << decoded.error().what();
  return std::get<T>(*decoded);
}

TEST(JsonBytes, EveryByteComesBack) {
  EXPECT_EQ(text_to_bytes(bytes_to_text(every_byte())), every_byte());
}

TEST(JsonBytes, CodePointsAbove255AreRefused) {
  EXPECT_FALSE(text_to_bytes("\xE2\x82\xAC").has_value());
  EXPECT_FALSE(text_to_bytes("\xC3").has_value());
}

TEST(Frames, OutcomeKeepsTailsByteForByte) {
  WorkerExit exit = {.global_rank = 3, .cause = ExitCause::kSignaled, .signal = SIGSEGV};
  exit.tail = every_byte();
  exit.seen_at = std::chrono::nanoseconds(123456789012345);
  JobOutcome outcome = {.exit_code = 139, .reason = "failed", .first_failure = exit};
  outcome.leftovers.push_back({12, "sleep 5"});
  outcome.checkpoint = {.step = 7, .generation = 2, .path = every_byte(), .token = "job/2/1"};
  const JobOutcome back = round_trip(outcome);

  EXPECT_EQ(back.exit_code, 139);
  EXPECT_EQ(back.first_failure->tail, every_byte());
  EXPECT_EQ(back.first_failure->seen_at, exit.seen_at);
  EXPECT_EQ(back.leftovers.at(0).command, "sleep 5");
  ASSERT_TRUE(back.checkpoint);
  EXPECT_EQ(back.checkpoint->step, 7u);
  EXPECT_EQ(back.checkpoint->generation, 2);
  EXPECT_EQ(back.checkpoint->path, every_byte());
  EXPECT_EQ(back.checkpoint->token, "job/2/1");
}

TEST(Frames, RefusalKeepsTheWholeError) {
  Error error(ErrorCode::kPortInUse, "cannot listen", "take another");
  error.while_doing("starting").with_detail("held by", "12");
  const Refused back = round_trip(Refused{error});

  EXPECT_EQ(back.error.render(), error.render());
}

TEST(Frames, RequestsComeBack) {
  const Stop stop = {.mode = StopMode::kInterrupt,
                     .signal = SIGINT,
                     .delivered_to = 3,
                     .grace = std::chrono::milliseconds(2500)};
  const auto decoded = decode_request(encode(HostRequest(stop)));

  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(std::get<Stop>(*decoded).mode, StopMode::kInterrupt);
  EXPECT_EQ(std::get<Stop>(*decoded).signal, SIGINT);
  EXPECT_EQ(std::get<Stop>(*decoded).delivered_to, 3);
  EXPECT_EQ(std::get<Stop>(*decoded).grace, std::chrono::milliseconds(2500));
}

TEST(Frames, GenerationsOfTheOwnerComeBack) {
  const PrepareGeneration prepare = {.generation = 3,
                                     .restart_count = 1,
                                     .first_rank = 4,
                                     .world_size = 8,
                                     .node_rank = 1,
                                     .num_nodes = 2,
                                     .hosts_store = false,
                                     .bind_address = "::",
                                     .port = 29500,
                                     .is_exact_port = true,
                                     .members = {"10.0.0.1", "fd00::2"}};
  const auto decoded = decode_request(encode(HostRequest(prepare)));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  const auto& back = std::get<PrepareGeneration>(*decoded);
  EXPECT_EQ(encode(HostRequest(back)), encode(HostRequest(prepare)));
  EXPECT_EQ(back.members, prepare.members);

  GenerationEnded ended = {.generation = 3, .is_clean = false, .made_progress = true};
  ended.outcome.reason = "failed";
  EXPECT_EQ(round_trip(ended).outcome.reason, "failed");
  EXPECT_FALSE(round_trip(ended).is_clean);
  const Snapshot snapshot = {
      .job_id = "j", .state = "running", .workers = {{.pid = 12, .is_alive = true, .step = 9}}};
  EXPECT_EQ(round_trip(snapshot).workers.at(0).step, 9u);
}

TEST(Frames, TimesOfStepsComeBackAndAnOlderShimTellsNone) {
  Snapshot snapshot = {.job_id = "j", .state = "running", .workers = {{.pid = 12}, {.pid = 13}}};
  snapshot.workers[1].times = {.steps = 4,
                               .total_ns = ~std::uint64_t{0},
                               .input_ns = 1,
                               .communication_ns = 2,
                               .io_ns = 3,
                               .wait_ns = 5};
  const Snapshot back = round_trip(snapshot);
  EXPECT_EQ(back.workers.at(0).times, StepTimes{});
  EXPECT_EQ(back.workers.at(1).times, snapshot.workers[1].times);
  const auto json = nlohmann::json::parse(encode(HostEvent(snapshot)));
  EXPECT_FALSE(json.at("workers").at(0).contains("times"));
}

TEST(Frames, StoresThatAreOpenedFirstComeBack) {
  const HostRequest open = OpenStore{.generation = 4,
                                     .bind_address = "192.0.2.1",
                                     .port = 29500,
                                     .is_exact_port = true,
                                     .members = {std::string(kEveryMachine)}};
  const auto asked = decode_request(encode(open));
  ASSERT_TRUE(asked);
  const auto& back = std::get<OpenStore>(*asked);
  EXPECT_EQ(back.generation, 4);
  EXPECT_EQ(back.bind_address, "192.0.2.1");
  EXPECT_EQ(back.port, 29500);
  EXPECT_TRUE(back.is_exact_port);
  EXPECT_EQ(back.members, std::vector<std::string>{"*"});

  const auto told = decode_event(encode(StoreOpened{.generation = 4, .store_port = 29500}));
  ASSERT_TRUE(told);
  EXPECT_EQ(std::get<StoreOpened>(*told).store_port, 29500);
}

TEST(Frames, ASnapshotTellsWhoHasEndedAndOneOfTheProtocolBeforeDoesNot) {
  Snapshot snapshot = {.job_id = "j", .state = "running"};
  snapshot.exits.push_back({.local_rank = 1, .exit_code = 4});
  EXPECT_EQ(round_trip(snapshot).exits.at(0).exit_code, 4);

  auto json = nlohmann::json::parse(encode(HostEvent(snapshot)));
  json.erase("exits");
  const auto decoded = decode_event(json.dump());

  ASSERT_TRUE(decoded.has_value());
  EXPECT_TRUE(std::get<Snapshot>(*decoded).exits.empty());
}

TEST(Frames, AdoptionAndHangsComeBack) {
  const auto adopt = decode_request(encode(HostRequest(Adopt{.build = "b", .token = "secret"})));
  ASSERT_TRUE(adopt.has_value());
  EXPECT_EQ(std::get<Adopt>(*adopt).token, "secret");
  EXPECT_EQ(std::get<Adopt>(*adopt).protocol, kProtocolVersion);
  const Hung hung = {.global_rank = 3,
                     .step = 12,
                     .silent_for = std::chrono::milliseconds(31'000),
                     .silent_ranks = {0, 3}};
  EXPECT_EQ(round_trip(hung).silent_for, hung.silent_for);
  EXPECT_EQ(round_trip(hung).silent_ranks, hung.silent_ranks);
  EXPECT_EQ(round_trip(Straggler{.global_rank = 1, .score = 4.5}).score, 4.5);
  EXPECT_TRUE(round_trip(WorkerStopped{.pid = 4, .is_traced = true}).is_traced);
  EXPECT_EQ(round_trip(StatusShown{.number = 7}).number, 7U);
}

TEST(Frames, ALineForTheTerminalComesBack) {
  const auto decoded = decode_request(
      encode(HostRequest(ShowStatus{.number = 7, .text = "step 5", .despite_returns = true})));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  const auto& status = std::get<ShowStatus>(*decoded);
  EXPECT_EQ(status.number, 7U);
  EXPECT_EQ(status.text, "step 5");
  EXPECT_TRUE(status.despite_returns);
}

TEST(Frames, LeasesComeBackAndAnOwnerOfTheProtocolBeforeAsksForNone) {
  const auto until = std::chrono::hours(20'000) + std::chrono::nanoseconds(7);
  const HostRequest prepare = PrepareGeneration{.generation = 2, .lease_until = until};
  const auto decoded = decode_request(encode(prepare));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_EQ(std::get<PrepareGeneration>(*decoded).lease_until, until);
  const auto renewal =
      decode_request(encode(HostRequest(RenewLease{.generation = 2, .until = until})));
  ASSERT_TRUE(renewal.has_value()) << renewal.error().what();
  EXPECT_EQ(std::get<RenewLease>(*renewal).generation, 2);
  EXPECT_EQ(std::get<RenewLease>(*renewal).until, until);
  EXPECT_EQ(round_trip(Snapshot{.job_id = "j", .lease_until = until}).lease_until, until);

  auto json = nlohmann::json::parse(encode(prepare));
  json.erase("lease_until");
  const auto older = decode_request(json.dump());
  ASSERT_TRUE(older.has_value()) << older.error().what();
  EXPECT_EQ(std::get<PrepareGeneration>(*older).lease_until, BootTime::zero());
}

TEST(Frames, Fault55AnOutcomeOfTheProtocolBeforeIsUnderstood) {
  JobOutcome outcome = {.exit_code = 3, .reason = "failed", .first_failure = WorkerExit{}};
  outcome.exits.emplace_back();
  auto json = nlohmann::json::parse(encode(HostEvent(outcome)));
  auto& body = json["outcome"];
  for (const char* name : {"has_saved", "checkpoint"}) body.erase(name);
  for (auto* exit : {&body["exits"][0], &body["first_failure"]}) {
    for (const char* name : {"has_saved", "saved_step", "detail"}) exit->erase(name);
  }

  const auto decoded = decode_event(json.dump());

  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_EQ(std::get<JobOutcome>(*decoded).exit_code, 3);
}

TEST(Frames, Fault55AnOlderShimLacksTheNewMembersAndIsUnderstood) {
  const auto hello = decode_event(R"({"type":"hello","protocol":1,"build":"0.0.9","pid":4})");
  ASSERT_TRUE(hello.has_value());
  EXPECT_TRUE(has_common_protocol(std::get<Hello>(*hello)));
  EXPECT_FALSE(has_common_protocol(Hello{.protocol = 9, .oldest_protocol = 8}));
  EXPECT_FALSE(has_common_protocol(Hello{.protocol = 0, .oldest_protocol = 0}));
  EXPECT_TRUE(has_common_protocol(Hello{.protocol = 9, .oldest_protocol = kProtocolVersion}));
  EXPECT_EQ(describe_protocols(1, 2), "1 to 2");
}

TEST(Frames, NonsenseIsAProtocolError) {
  for (const char* text : {"",
                           "{",
                           "[]",
                           "null",
                           "{}",
                           R"({"type":"no"})",
                           R"({"type":7})",
                           R"({"type":"hello","protocol":99999999999,"build":"","pid":1})",
                           R"({"type":"outcome","outcome":{"success":1}})",
                           R"({"type":"refused","error":{"code":-1}})"}) {
    const auto decoded = decode_event(text);
    ASSERT_FALSE(decoded.has_value()) << text;
    EXPECT_EQ(decoded.error().code(), ErrorCode::kProtocol);
  }
}

// Sixteen MiB of empty arrays were half a GiB and a second of the agent's loop.
TEST(Frames, Fault67AFrameOfMoreValuesThanAnyEventHasIsRefusedUnread) {
  std::string many = R"({"type":"notice","text":"x","x":[)";
  for (int i = 0; i < 300'000; ++i) many += "[],";
  const auto refused = decode_event(many + "0]}");
  const std::string text(1'000'000, ',');
  const auto taken = decode_event(encode(HostEvent(Notice{"\\\"" + text + "\""})));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "a frame of the shim has more values than any event");
  ASSERT_TRUE(taken);
  EXPECT_EQ(std::get<Notice>(*taken).text.size(), text.size() + 3);
}

// The agent subtracts them from its clock.
TEST(Frames, Fault67TimesThatNoClockCanHaveAreAProtocolError) {
  const auto most = std::chrono::hours(50 * 365 * 24);
  EXPECT_TRUE(decode_event(encode(HostEvent(Hung{.silent_for = most}))));
  const auto decoded =
      decode_event(encode(HostEvent(Hung{.silent_for = std::chrono::milliseconds::max()})));

  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(decoded.error().message(), "a frame of the shim: silent_for is out of range");
}

TEST(FrameSocket, BigFrameTravelsAsAMemfd) {
  auto pair = FrameSocket::make_pair();
  ASSERT_TRUE(pair.has_value());
  const std::string big(kMaxFrameBytes * 5, 'x');

  ASSERT_EQ(pair->first.send(big), FrameSocket::SendStatus::kSent);
  const auto received = pair->second.receive();

  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->status, Status::kFrame);
  EXPECT_EQ(received->frame, big);
}

TEST(FrameSocket, Fault67ALongerFrameThanMayBeIsRefusedUnread) {
  auto pair = FrameSocket::make_pair();
  ASSERT_EQ(pair->first.send(std::string(kMaxPayloadBytes, 'x')), FrameSocket::SendStatus::kSent);
  EXPECT_EQ(pair->second.receive()->frame.size(), kMaxPayloadBytes);

  ASSERT_EQ(pair->first.send(std::string(kMaxPayloadBytes + 1, 'x')),
            FrameSocket::SendStatus::kSent);
  const auto received = pair->second.receive();
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), ErrorCode::kProtocol);
}

TEST(FrameSocket, ClosedPeerIsSeen) {
  auto pair = FrameSocket::make_pair();
  pair->first.close();

  EXPECT_EQ(pair->second.receive()->status, Status::kPeerGone);
  EXPECT_EQ(pair->second.send("{}"), FrameSocket::SendStatus::kPeerGone);
}

TEST(FrameSocket, LastWordArrivesThoughARequestCameTooLateToBeRead) {
  auto pair = FrameSocket::make_pair();
  (void)pair->first.send("the outcome");
  (void)pair->second.send("a request");
  pair->first.close();

  EXPECT_EQ(pair->second.receive()->frame, "the outcome");
  EXPECT_EQ(pair->second.receive()->status, Status::kPeerGone);
}

TEST(FrameSocket, NothingThereIsNotAnError) {
  auto pair = FrameSocket::make_pair();

  EXPECT_EQ(pair->second.receive()->status, Status::kNothing);
}

TEST(FrameSocket, PayloadWithoutSealsIsRefused) {
  auto pair = FrameSocket::make_pair();
  const UniqueFd memfd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::string text = R"({"type":"payload","size":0})";
  iovec part = {text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  *reinterpret_cast<int*>(CMSG_DATA(header)) = memfd.get();
  ASSERT_GT(::sendmsg(pair->first.fd(), &message, 0), 0);

  const auto received = pair->second.receive();

  ASSERT_FALSE(received.has_value());
  EXPECT_EQ(received.error().code(), ErrorCode::kProtocol);
}

}  // namespace
}  // namespace accel::supervisor::frames_test

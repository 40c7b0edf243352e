// The state of a process: alone, in a group, and after a reset.

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <accel/available.h>
#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/process/old_kernel.h"
#include "libaccel/engine/process/process_group.h"
#include "runtime/unique_fd.h"
#include "tests/support/rank_group.h"

namespace accel::state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ErrorCode code_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kCount_;
}

TEST(OldKernel, IsNamedBelow5_5) {
  EXPECT_THAT(
      old_kernel_notice("5.4.0-150-generic").value_or(""),
      HasSubstr("Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0"));
  EXPECT_TRUE(old_kernel_notice("4.18.0-553.el8_10.x86_64"));
  EXPECT_EQ(old_kernel_notice("5.5.0"), std::nullopt);
  EXPECT_EQ(old_kernel_notice("6.18.44"), std::nullopt);
  EXPECT_EQ(old_kernel_notice("unknown"), std::nullopt);
}

TEST(Available, SaysWhatThisBuildOfLibTorchHas) {
  EXPECT_TRUE(is_device_available(c10::DeviceType::CPU));
  EXPECT_EQ(is_cuda_available(), at::detail::getCUDAHooks().deviceCount() > 0);
  EXPECT_FALSE(is_xpu_available() || is_mps_available() || is_hpu_available() ||
               is_torch_xla_available());
  EXPECT_FALSE(is_npu_available() || is_mlu_available() || is_musa_available() ||
               is_sdaa_available());
}

TEST(Available, ATakenPortIsInUse) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_FALSE(is_port_in_use(port)) << "bound, and nobody listens";
  ASSERT_EQ(::listen(socket, 1), 0);
  EXPECT_TRUE(is_port_in_use(port));
  ::close(socket);
  EXPECT_THROW((void)is_port_in_use(0), Error);
}

class StateAlone : public ::testing::Test {
 protected:
  void SetUp() override { PartialState::reset(); }
  void TearDown() override {
    PartialState::reset();
    for (const char* name :
         {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_TORCH_DEVICE", "ACCELERATE_DEBUG_MODE"}) {
      unsetenv(name);
    }
  }
};

TEST_F(StateAlone, IsOneMainProcessOnTheCpu) {
  const PartialState state;

  EXPECT_EQ(state.num_processes(), 1);
  EXPECT_EQ(state.process_index(), 0);
  EXPECT_TRUE(state.is_main_process());
  EXPECT_TRUE(state.is_local_main_process());
  EXPECT_TRUE(state.is_last_process());
  EXPECT_FALSE(state.use_distributed());
  EXPECT_EQ(state.distributed_type(), DistributedType::kNo);
  EXPECT_EQ(state.to_string(),
            "Distributed environment: DistributedType.NO\nNum processes: 1\nProcess index: 0\n"
            "Local process index: 0\nDevice: cpu\n");
}

TEST_F(StateAlone, EveryHandleThrowsAfterReset) {
  const PartialState state;
  const GradientState gradients;
  const AcceleratorState accelerator;

  PartialState::reset();

  EXPECT_FALSE(PartialState::initialized());
  EXPECT_EQ(code_of([&] { (void)state.device(); }), ErrorCode::kNotInitialized);
  EXPECT_EQ(code_of([&] { state.wait_for_everyone(); }), ErrorCode::kNotInitialized);
  EXPECT_EQ(code_of([&] { (void)gradients.sync_gradients(); }), ErrorCode::kNotInitialized);
  EXPECT_EQ(code_of([&] { (void)accelerator.mixed_precision(); }), ErrorCode::kNotInitialized);
}

TEST_F(StateAlone, PrecisionComesFromTheEnvironmentUnlessGiven) {
  setenv("ACCELERATE_MIXED_PRECISION", "bf16", 1);

  EXPECT_EQ(AcceleratorState().mixed_precision(), PrecisionType::kBf16);
  EXPECT_THAT(AcceleratorState().to_string(),
              HasSubstr("Device: cpu\n\nMixed precision type: bf16\n"));
  AcceleratorState::reset();
  EXPECT_EQ(AcceleratorState({.mixed_precision = PrecisionType::kFp16}).mixed_precision(),
            PrecisionType::kFp16);
}

TEST_F(StateAlone, TakesThePrecisionsThatAreAvailable) {
  const auto takes = [](PrecisionType precision) {
    PartialState::reset();
    return code_of([&] { const AcceleratorState state({.mixed_precision = precision}); }) ==
           ErrorCode::kCount_;
  };
  EXPECT_EQ(is_bf16_available(), takes(PrecisionType::kBf16));
  EXPECT_EQ(is_fp16_available(), takes(PrecisionType::kFp16));
  EXPECT_EQ(is_fp8_available(), takes(PrecisionType::kFp8));
}

TEST_F(StateAlone, PrecisionCannotChangeLater) {
  const AcceleratorState first({.mixed_precision = PrecisionType::kBf16});

  EXPECT_EQ(code_of([] { AcceleratorState({.mixed_precision = PrecisionType::kNo}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(AcceleratorState().mixed_precision(), PrecisionType::kBf16);
}

TEST_F(StateAlone, NamesTheDeviceThatItCannotUse) {
  setenv("ACCELERATE_TORCH_DEVICE", "cuda:3", 1);
  EXPECT_EQ(code_of([] { PartialState(); }), ErrorCode::kUnsupported);

  setenv("ACCELERATE_TORCH_DEVICE", "toaster", 1);
  EXPECT_EQ(code_of([] { PartialState(); }), ErrorCode::kEnvInvalid);
}

TEST_F(StateAlone, CallsRunOnlyWhereTheyShould) {
  const PartialState state;
  int calls = 0;

  state.on_main_process([&] { ++calls; });
  const std::optional<int> result = state.on_last_process([] { return 7; });

  EXPECT_EQ(calls, 1);
  EXPECT_EQ(result, 7);
  EXPECT_EQ(state.on_process(3, [] { return 1; }), 1)
      << "a process alone runs everything, as in the peer";
}

class FakeLoader : public ActiveDataLoader {
 public:
  FakeLoader(bool end, std::int64_t remainder) : end_(end), remainder_(remainder) {}
  bool end_of_dataloader() const override { return end_; }
  std::int64_t remainder() const override { return remainder_; }

 private:
  bool end_;
  std::int64_t remainder_;
};

TEST_F(StateAlone, NestedLoadersFormAStack) {
  const GradientState state;
  const FakeLoader outer(false, 3);
  const FakeLoader inner(true, 5);

  state.add_dataloader(&outer);
  state.add_dataloader(&inner);
  EXPECT_TRUE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 5);
  state.remove_dataloader(&inner);
  EXPECT_FALSE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 3);
  state.remove_dataloader(&outer);
  EXPECT_FALSE(state.in_dataloader());
  EXPECT_EQ(state.remainder(), -1);
}

TEST_F(StateAlone, GradientStatePrintsThePeersLines) {
  EXPECT_EQ(GradientState().to_string(),
            "Sync Gradients: True\nAt end of current dataloader: False\nExtra samples added: -1\n"
            "Gradient accumulation plugin: {}\n");
  EXPECT_FALSE(GradientState().adjust_scheduler());
  EXPECT_THAT(GradientState({.num_steps = 4}).to_string(), HasSubstr("plugin: {'num_steps': 4}\n"));
  EXPECT_TRUE(GradientState().adjust_scheduler());
}

TEST(Split, GivesTheFirstProcessesOneMore) {
  const auto lengths = [](std::int64_t length, int processes) {
    std::vector<std::int64_t> result;
    for (int i = 0; i < processes; ++i) {
      const SplitRange range = split_range(length, processes, i);
      result.push_back(range.end - range.begin);
    }
    return result;
  };

  EXPECT_THAT(lengths(17, 2), ElementsAre(9, 8));
  EXPECT_THAT(lengths(17, 4), ElementsAre(5, 4, 4, 4));
  EXPECT_THAT(lengths(2, 4), ElementsAre(1, 1, 0, 0));
}

TEST(Split, PaddingRepeatsTheLastElement) {
  const std::vector<std::string> letters = {"A", "B", "C"};
  const at::Tensor rows = at::arange(6).view({3, 2});

  EXPECT_THAT(split_for_process(letters, 2, 1, {}), ElementsAre("C"));
  EXPECT_THAT(split_for_process(letters, 2, 1, {.apply_padding = true}), ElementsAre("C", "C"));
  EXPECT_THAT(split_for_process(letters, 5, 4, {.apply_padding = true}), ElementsAre("C"));
  EXPECT_THAT(split_for_process(letters, 5, 4, {}), IsEmpty());
  EXPECT_TRUE(at::equal(split_for_process(rows, 2, 1, {.apply_padding = true}),
                        at::cat({rows.slice(0, 2), rows.slice(0, 2)})));
}

TEST(Split, ValuesOfAMapMustHaveOneLength) {
  const std::map<std::string, std::vector<int>> even = {{"a", {1, 2, 3}}, {"b", {4, 5, 6}}};
  const std::map<std::string, std::vector<int>> uneven = {{"a", {1, 2, 3}}, {"b", {4, 5}}};

  EXPECT_THAT(split_for_process(even, 2, 0, {}).at("b"), ElementsAre(4, 5));
  EXPECT_EQ(code_of([&] { (void)split_for_process(uneven, 2, 0, {}); }),
            ErrorCode::kInvalidArgument);
}

TEST(StateOfTwoRanks, KnowsItsPlaceAndPrintsIt) {
  test::run_ranks(2, [] {
    const PartialState state;
    const std::string index = std::to_string(test::rank_of_this_process());

    EXPECT_EQ(state.distributed_type(), DistributedType::kMultiCpu);
    EXPECT_TRUE(state.use_distributed());
    EXPECT_EQ(state.to_string(),
              "Distributed environment: DistributedType.MULTI_CPU  Backend: shm\nNum processes: 2\n"
              "Process index: " +
                  index + "\nLocal process index: " + index + "\nDevice: cpu:0\n");
    state.wait_for_everyone();  // a rank that ends at once is lost to one that is still joining
  });
}

TEST(StateOfTwoRanks, MeetsThroughAStoreOnRankZero) {
  test::run_ranks(2,
                  [] {
                    const PartialState state;
                    state.wait_for_everyone();
                    EXPECT_EQ(state.num_processes(), 2);
                  },
                  {.rank_0_hosts_store = true});
}

// A port of this machine. Bound and silent: nobody else gets it, and connections are refused until it
// listens. A server answers the first connection with what it was given.
class OccupiedPort {
 public:
  OccupiedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    text_ = std::to_string(ntohs(address.sin_port));
  }
  void listen() { ::listen(socket_.get(), 8); }
  void answer(std::string_view text) {
    listen();
    server_ = std::jthread([this, text = std::string(text)] {
      const UniqueFd client(::accept(socket_.get(), nullptr, nullptr));
      ::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
      char byte;
      while (::recv(client.get(), &byte, 1, 0) > 0) {
      }
    });
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  UniqueFd socket_;
  std::string text_;
  std::jthread server_;
};

// How a rank that is sent to that port fails. Only accel's own words reach its output.
void expect_store_unreachable(const OccupiedPort& port, const std::string& why) {
  const auto exits = test::run_ranks(
      1,
      [&] {
        try {
          PartialState({.init_process_group = {.store_timeout = std::chrono::milliseconds(300)}});
          FAIL() << "joined a group without a store";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kStoreUnreachable);
          EXPECT_THAT(error.message(),
                      ::testing::MatchesRegex(
                          "the store at 127.0.0.1:[0-9]+ did not answer, waited [0-9.]+ s: .*"));
          EXPECT_THAT(error.message(), HasSubstr(why));
          EXPECT_THAT(error.remedy(), HasSubstr("MASTER_PORT"));
          EXPECT_THAT(error.context(), ElementsAre("joining the process group as rank 1"));
        }
      },
      {.env = {{"MASTER_PORT", port.text()}, {"WORLD_SIZE", "2"}, {"RANK", "1"}}});
  EXPECT_THAT(exits[0].output, Not(HasSubstr("c10d")));
  EXPECT_THAT(exits[0].output, Not(HasSubstr("socket.cpp")));
}

TEST(StoreUnreachable, SaysThatNobodyListens) {
  const OccupiedPort port;

  expect_store_unreachable(port, "Connection refused");
}

TEST(StoreUnreachable, SaysThatWhatListensDoesNotAnswer) {
  OccupiedPort port;
  if (test::rank_of_this_process() < 0) port.listen();

  expect_store_unreachable(port, "something listens there and does not answer");
}

TEST(StoreUnreachable, SaysThatAnotherServiceHasThePort) {
  OccupiedPort port;
  if (test::rank_of_this_process() < 0) port.answer("220 mail.example.org ready\r\n");

  expect_store_unreachable(port, "no key-value store of c10d");
}

// What hosts the store is killed while rank 1 waits in it for rank 0.
TEST(StateOfTwoRanks, SaysThatTheStoreWentAwayWhileItWaited) {
  test::run_ranks(
      2,
      [] {
        if (test::rank_of_this_process() == 0) {
          c10d::TCPStoreOptions options;
          options.port = static_cast<std::uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
          options.isServer = true;
          options.waitWorkers = false;
          auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
          c10d::PrefixStore("accel/attempt_0", store).wait({"arrived/1"});
          std::quick_exit(0);
        }
        try {
          PartialState({.init_process_group = {}});
          FAIL() << "joined a group whose store is gone";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kStoreUnreachable);
          EXPECT_THAT(error.message(),
                      HasSubstr("while waiting for the other ranks to reach the store"));
          EXPECT_THAT(error.context(), ElementsAre("joining the process group as rank 1"));
        }
      },
      {.rank_0_hosts_store = true});
}

TEST(StateOfTwoRanks, NamesTheRankThatNeverCame) {
  const auto exits = test::run_ranks(2, [] {
    if (test::rank_of_this_process() == 1) return;
    try {
      PartialState({.init_process_group = {.store_timeout = std::chrono::milliseconds(1500)}});
      FAIL() << "joined a group of which one rank is missing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kStoreTimeout);
      EXPECT_THAT(error.message(), HasSubstr("within 1.5"));
      EXPECT_THAT(error.message(), ::testing::EndsWith(": 1"));
      EXPECT_THAT(error.remedy(), Not(IsEmpty()));
    }
  });
  EXPECT_EQ(exits.size(), 2u);
}

TEST(StateOfTwoRanks, ALostPeerIsAnErrorThatNamesTheOperation) {
  test::run_ranks(2, [] {
    const PartialState state;
    state.wait_for_everyone();
    if (state.process_index() == 1) return;
    try {
      for (int i = 0; i < 1000; ++i) state.wait_for_everyone();
      FAIL() << "a barrier passed without the other rank";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error.message(), HasSubstr("wait_for_everyone failed on rank 0 of 2"));
    }
  });
}

// Gloo and TCPStore write to sockets without MSG_NOSIGNAL: without this a rank ends at its next message to a dead one.
TEST(StateOfTwoRanks, OutliveWritingToWhatNobodyReads) {
  test::run_ranks(2, [] {
    ::signal(SIGPIPE, SIG_DFL);
    const PartialState state;
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    ::close(ends[0]);
    EXPECT_EQ(::write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
    ::close(ends[1]);
    state.wait_for_everyone();
  });
}

TEST(StateOfTwoRanks, KeepTheProgramsOwnHandlerOfBrokenPipes) {
  test::run_ranks(2, [] {
    static std::atomic<int> num_calls = 0;
    ::signal(SIGPIPE, [](int) { ++num_calls; });
    const PartialState state;
    std::raise(SIGPIPE);
    EXPECT_EQ(num_calls.load(), 1);
    state.wait_for_everyone();
  });
}

TEST(StateOfTwoRanks, CollectivesAreRefusedAfterTheGroupIsDestroyed) {
  test::run_ranks(2, [] {
    PartialState state;
    state.wait_for_everyone();
    state.destroy_process_group();
    EXPECT_EQ(code_of([&] { state.wait_for_everyone(); }), ErrorCode::kNotInitialized);
    EXPECT_EQ(state.num_processes(), 2);
  });
}

TEST(StateOfTwoRanks, CanBeSetUpAgainAfterAReset) {
  test::run_ranks(1, [] {
    PartialState state;
    EXPECT_EQ(state.distributed_type(), DistributedType::kMultiCpu);
    PartialState::reset();
    PartialState again;
    again.wait_for_everyone();
  });
}

TEST(StateOfTwoRanks, TheirGroupsAfterAResetAreNewOnes) {
  test::run_ranks(2, [] {
    for (int i = 0; i < 3; ++i) {
      const PartialState state;
      EXPECT_EQ(state.backend(), "shm");
      state.wait_for_everyone();
      PartialState::reset();
    }
  });
}

TEST(StateOfTwoRanks, TakeTheBackendThatIsNamed) {
  for (const char* backend : {"shm", "gloo"}) {
    test::run_ranks(2, [&] {
      const PartialState state({.init_process_group = {.backend = backend}});
      EXPECT_EQ(state.backend(), backend);
      state.wait_for_everyone();
    });
  }
}

// No file of this process may be larger, its shared memory included.
void limit_size_of_files() {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {.rlim_cur = 64 * 1024, .rlim_max = RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(StateOfTwoRanks, GoThroughGlooAndSaySoOnceWhenOneCannotShareMemory) {
  const auto exits = test::run_ranks(2, [] {
    if (test::rank_of_this_process() == 0) limit_size_of_files();
    const PartialState state;
    EXPECT_EQ(state.backend(), "gloo");
    state.wait_for_everyone();
  });
  EXPECT_THAT(exits[0].output, HasSubstr("rank 0 cannot share memory: no shared memory of"));
  EXPECT_THAT(exits[0].output, HasSubstr("collectives go through gloo"));
  EXPECT_THAT(exits[1].output, Not(HasSubstr("cannot share memory")));
}

TEST(StateOfTwoRanks, AreRefusedAlikeWhenTheBackendThatIsNamedCannotBe) {
  test::run_ranks(2, [] {
    if (test::rank_of_this_process() == 0) limit_size_of_files();
    EXPECT_EQ(code_of([] { PartialState({.init_process_group = {.backend = "shm"}}); }),
              ErrorCode::kUnsupported);
  });
}

TEST(StateOfThreeRanks, MainProcessGoesFirst) {
  test::run_ranks(3, [] {
    const PartialState state;
    const auto group = PartialState::process_group();
    // A counter that all ranks share: the store's.
    std::int64_t place = 0;
    {
      const auto turn = state.main_process_first();
      place = group->store()->add("place", 1);
    }
    EXPECT_EQ(place == 1, state.is_main_process()) << "place " << place;
  });
}

TEST(CollectiveError, TellsALostPeerFromOtherFailures) {
  const Error lost =
      collective_error("[x.cc:1] Connection closed by peer [127.0.0.1]:1\ntrace", "gather", 0, 2);
  const Error late =
      collective_error("Timed out waiting 1000ms for recv operation", "gather", 0, 2);
  const Error other = collective_error("Invalid scalar type", "reduce", 1, 2);

  EXPECT_EQ(lost.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(lost.message(), Not(HasSubstr("trace")));
  EXPECT_EQ(late.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(late.remedy(), HasSubstr("timeout"));
  EXPECT_EQ(other.code(), ErrorCode::kProcessGroup);
  EXPECT_THAT(other.message(), HasSubstr("reduce failed on rank 1 of 2"));
}

}  // namespace
}  // namespace accel::state_test

// MainStore looks for a main process whose name has no address yet, or another one by now.

#include "launcher/start/machines/main/main_store.h"

#include <gtest/gtest.h>

#include "tests/support/reserved_port.h"

namespace accel::launcher::main_store_test {
namespace {

using boost::asio::ip::tcp;
using supervisor::TcpEndpoint;

constexpr std::chrono::seconds kLongEnough(20);
constexpr StorePauses kNoPauses{.connect = {}, .look_up = {}};

tcp::endpoint any_port() {
  return {boost::asio::ip::address_v4::loopback(), 0};
}

class MainStoreTest : public ::testing::Test {
 protected:
  // Machine 1 of two, which is answered `answers` one after another, and the last one from then on.
  MainStore& machine_1(std::vector<Result<std::vector<TcpEndpoint>>> answers) {
    answers_ = std::move(answers);
    MachinesSettings settings;
    settings.num_machines = 2;
    settings.machine_rank = 1;
    settings.address = "pod-0.jobs";
    settings.port = 29500;
    store_ = std::make_unique<MainStore>(
        loop_,
        settings,
        BoardSeal(),
        MainStore::Handlers{
            .on_found = [this] { store_->begin(0); },
            .open = [](const std::string&) {},
            .on_up = [this] { loop_.stop(); },
            .on_gone = [] {},
            .on_fault = [this](const Error& why) { fault_ = why.message(); },
            .say = [](const std::string&) {},
            .look_up =
                [this](const std::string&, std::uint16_t, const MainStore::Handlers::Found& done) {
                  ways_.push_back(store_->describe_way());
                  done(answers_[std::min(num_asked_++, answers_.size() - 1)]);
                }},
        kNoPauses);
    store_->find();
    return *store_;
  }

  const test::ReservedPort silent_;
  const tcp::endpoint refusing_{boost::asio::ip::address_v4::loopback(),
                                static_cast<std::uint16_t>(silent_.port())};
  boost::asio::io_context loop_;
  std::unique_ptr<MainStore> store_;
  std::vector<Result<std::vector<TcpEndpoint>>> answers_;
  std::vector<std::string> ways_;  // as they were described when it asked
  std::string fault_;
  std::size_t num_asked_ = 0;
};

TEST_F(MainStoreTest, AsksAgainForANameWithoutAnAddress) {
  tcp::acceptor listening(loop_, any_port());
  MainStore& store =
      machine_1({Error(ErrorCode::kStoreUnreachable, "'pod-0.jobs' has no address: Host not found"),
                 std::vector<TcpEndpoint>{listening.local_endpoint()}});
  EXPECT_TRUE(store.is_looking());

  loop_.run_for(kLongEnough);

  EXPECT_TRUE(store.is_up());
  EXPECT_EQ(fault_, "");
  EXPECT_EQ(ways_.back(), "pod-0.jobs:29500: 'pod-0.jobs' has no address: Host not found");
}

TEST_F(MainStoreTest, FollowsTheNameToAnotherAddress) {
  tcp::acceptor listening(loop_, any_port());
  MainStore& store = machine_1({std::vector<TcpEndpoint>{refusing_},
                                Error(ErrorCode::kStoreUnreachable, "not now"),
                                std::vector<TcpEndpoint>{listening.local_endpoint()}});

  loop_.run_for(kLongEnough);

  EXPECT_TRUE(store.is_up());
  EXPECT_EQ(num_asked_, 3u);
}

TEST_F(MainStoreTest, FollowsTheNameAsWellWhenItBeginsAnewAfterItWasClosed) {
  tcp::acceptor listening(loop_, any_port());
  MainStore& store = machine_1(
      {std::vector<TcpEndpoint>{refusing_}, std::vector<TcpEndpoint>{listening.local_endpoint()}});
  store.close();

  store.begin(1);
  loop_.run_for(kLongEnough);

  EXPECT_TRUE(store.is_up());
}

TEST_F(MainStoreTest, NamesTheFlagThatSaidWhereToListen) {
  MachinesSettings settings;
  settings.machine_rank = 0;
  settings.program = Program::kTorchrun;
  settings.is_at_endpoint = true;
  std::string remedy;
  MainStore store(loop_, settings, BoardSeal(), {.on_fault = [&remedy](const Error& why) {
                    remedy = why.remedy();
                  }});

  store.not_opened(Error(ErrorCode::kUnsupported,
                         "ports below 1024 need a right",
                         "give a port from 1024 on with --main_process_port (--master-port)"));

  EXPECT_EQ(remedy, "give a port from 1024 on with --rdzv-endpoint");
  EXPECT_EQ(settings.place_flags(), "--rdzv-endpoint");
  settings.is_at_endpoint = false;
  EXPECT_EQ(settings.place_flags(), "--master-addr and --master-port");
}

TEST_F(MainStoreTest, AsksNoMoreOnceItIsClosed) {
  MainStore& store = machine_1({Error(ErrorCode::kStoreUnreachable, "Host not found")});
  store.close();

  loop_.run_for(kLongEnough);  // nothing is left to wait for

  EXPECT_EQ(num_asked_, 1u);
}

TEST(MainSeat, IsTakenWithoutAMachineRankWhenTheAddressOrThePortIsAnothers) {
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, true, false, true), MainSeat::kTaken);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, true, false, true), MainSeat::kTaken);
}

TEST(MainSeat, IsUnclearForMachineRank0WithoutTheAddressUntilItListensOnAll) {
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, false, false, true),
            MainSeat::kUnclear);
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, false, true, true), MainSeat::kOurs);
}

TEST(MainSeat, IsOursWhenThePortNeedsARightThatWeDoNotHave) {
  EXPECT_EQ(seat_without_store(ErrorCode::kUnsupported, true, false, true), MainSeat::kOurs);
  EXPECT_EQ(seat_without_store(ErrorCode::kUnsupported, false, false, true), MainSeat::kOurs);
}

TEST(MainSeat, IsContestedForMachineRank0WhosePortIsHeldBeforeTheStoreWasItsOwn) {
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, false, true), MainSeat::kContested);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, true, true), MainSeat::kContested);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, false, false), MainSeat::kOurs);
}

}  // namespace
}  // namespace accel::launcher::main_store_test

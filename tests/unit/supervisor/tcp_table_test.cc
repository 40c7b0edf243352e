#include "runtime/supervisor/kernel/tcp_table.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/supervisor/store/tcp_listener.h"
#include "runtime/system.h"
#include "tests/support/store_client.h"

namespace accel::supervisor::tcp_table_test {
namespace {

using boost::asio::ip::make_address;
using ::testing::HasSubstr;

TEST(TcpTable, ReadsLinesAndLeavesOutWhatMakesNoSense) {
  const std::vector<TcpEntry> entries = parse_tcp_table(
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
      "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 "
      "4711 1 0\n"
      "   1: 0100007F:733C 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 "
      "4712 1 0\n"
      "   2: 0100007F:XYZ0 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 "
      "4713 1 0\n"
      "   3: short line\n"
      "   4: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A "
      "00000000:00000000 00:00000000 00000000     7        0 4714 1 0");

  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].local, TcpEndpoint(make_address("127.0.0.1"), 29500));
  EXPECT_TRUE(entries[0].is_listening);
  EXPECT_EQ(entries[0].uid, 1000u);
  EXPECT_EQ(entries[0].inode, 4711u);
  EXPECT_FALSE(entries[1].is_listening);
  EXPECT_EQ(entries[1].remote.port(), 0xA1B2);
  EXPECT_EQ(entries[2].local, TcpEndpoint(make_address("127.0.0.1"), 80));
}

class LoopbackConnection : public ::testing::Test {
 protected:
  TcpEndpoint own_end_of(const test::StoreClient& client) {
    TcpEndpoint end(make_address("127.0.0.1"), 0);
    auto size = static_cast<socklen_t>(end.capacity());
    EXPECT_EQ(::getsockname(client.fd(), end.data(), &size), 0);
    return end;
  }

  TcpListener listener_ = std::move(listen_tcp({.port = 0})).value();
  TcpOwners owners_;
};

TEST_F(LoopbackConnection, HasAnOwner) {
  const test::StoreClient client(listener_.endpoint.port());

  EXPECT_EQ(owners_.owner_of(own_end_of(client), listener_.endpoint), ::geteuid());
}

TEST_F(LoopbackConnection, ThatDoesNotExistHasNone) {
  EXPECT_EQ(owners_.owner_of(TcpEndpoint(make_address("127.0.0.1"), 1), listener_.endpoint),
            std::nullopt);
}

TEST_F(LoopbackConnection, ThatIsClosedHasNone) {
  test::StoreClient client(listener_.endpoint.port());
  const TcpEndpoint end = own_end_of(client);

  client.close();

  EXPECT_EQ(owners_.owner_of(end, listener_.endpoint), std::nullopt);
}

TEST(TcpListener, TakesAFreePortWhenTheUserNamedNone) {
  const TcpListener taken = std::move(listen_tcp({.port = 0})).value();

  const Result<TcpListener> other =
      listen_tcp({.port = taken.endpoint.port(), .exact_port = false});

  ASSERT_TRUE(other);
  EXPECT_NE(other->endpoint.port(), taken.endpoint.port());
}

TEST(TcpListener, NamesTheHolderOfAPortThatTheUserNamed) {
  const TcpListener taken = std::move(listen_tcp({.port = 0})).value();

  const Result<TcpListener> other = listen_tcp({.port = taken.endpoint.port(), .exact_port = true});

  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kPortInUse);
  EXPECT_THAT(other.error().message(), HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_THAT(other.error().message(), HasSubstr("supervisor_test"));
  EXPECT_THAT(other.error().message(), HasSubstr(std::to_string(taken.endpoint.port())));
}

TEST(TcpListener, RefusesANameForAnAddress) {
  const Result<TcpListener> listener = listen_tcp({.bind_address = "localhost", .port = 0});

  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().code(), ErrorCode::kInvalidArgument);
}

TEST(TcpListener, RefusesAnAddressOfAnotherMachine) {
  const Result<TcpListener> listener = listen_tcp({.bind_address = "192.0.2.1", .port = 0});

  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().code(), ErrorCode::kInvalidArgument);
}

// This thread without the right to open ports below 1024, for the life of this value.
class WithoutLowPorts {
 public:
  WithoutLowPorts() {
    ::syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~(1U << CAP_NET_BIND_SERVICE);
    ::syscall(SYS_capset, &header_, less);
  }
  ~WithoutLowPorts() { ::syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_ = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct before_[2] = {};
};

TEST(TcpListener, NamesTheRightThatALowPortNeeds) {
  const auto first = real_system().read_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", 4096);
  if (first && std::stoi(*first) < 2) {
    GTEST_SKIP() << "every port may be opened by everybody here";
  }
  const WithoutLowPorts without;

  const Result<TcpListener> listener = listen_tcp({.port = 1, .exact_port = true});

  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(listener.error().message(), HasSubstr("127.0.0.1:1: ports below "));
  EXPECT_THAT(listener.error().message(), HasSubstr("CAP_NET_BIND_SERVICE"));
  EXPECT_THAT(listener.error().remedy(), HasSubstr("--main_process_port"));
}

TEST(TcpListener, TakesAPortThatIsKeptForItAgainAndAgain) {
  const TcpListener kept =
      std::move(reserve_tcp({.bind_address = "0.0.0.0", .port = 0, .members = {}})).value();
  const std::uint16_t port = kept.endpoint.port();
  const TcpEndpoint wanted(make_address("127.0.0.1"), port);

  const UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(other.get(), wanted.data(), static_cast<socklen_t>(wanted.size())), -1);
  EXPECT_EQ(errno, EADDRINUSE) << "who does not share ports does not get it";
  for (int generation = 0; generation < 2; ++generation) {
    const Result<TcpListener> store = listen_tcp({.port = port, .exact_port = true});
    ASSERT_TRUE(store) << store.error().message();
    const test::StoreClient client(port);
  }
}

TEST(TcpListener, KeepsNoPortThatSomebodyListensAt) {
  const TcpListener taken = std::move(listen_tcp({.port = 0})).value();

  const Result<TcpListener> kept = reserve_tcp({.port = taken.endpoint.port(), .exact_port = true});

  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code(), ErrorCode::kPortInUse);
}

TEST(TcpListener, IsNotInheritedByPrograms) {
  const TcpListener listener = std::move(listen_tcp({.port = 0})).value();

  EXPECT_EQ(::fcntl(listener.socket.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

}  // namespace
}  // namespace accel::supervisor::tcp_table_test

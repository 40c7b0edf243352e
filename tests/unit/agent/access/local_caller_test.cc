#include "agent/access/local_caller.h"

#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "agent/calls/listener.h"
#include "runtime/unix_address.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent {
namespace {

// Connections that may not block, as many as the queue of `path` takes.
std::vector<UniqueFd> fill_queue(const std::string& path) {
  std::vector<UniqueFd> held;
  const auto address = unix_address(path);
  while (true) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
      return held;
    held.push_back(std::move(socket));
  }
}

TEST(LocalCallerTest, WaitsForAPlaceInAQueueThatOthersFilled) {
  const test::ScratchFolder folder;
  const std::string path = folder.path() / "agent.sock";
  auto listener = listen_at_path(path, 4);
  ASSERT_TRUE(listener) << listener.error().render("test");
  auto held = fill_queue(path);
  ASSERT_FALSE(held.empty());
  EXPECT_EQ(errno, EAGAIN);
  auto connected =
      std::async(std::launch::async, [&] { return connect_to_socket(path, SOCK_STREAM); });
  EXPECT_EQ(connected.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  const UniqueFd first(::accept(listener->get(), nullptr, nullptr));
  EXPECT_TRUE(first);
  const auto socket = connected.get();
  EXPECT_TRUE(socket) << socket.error().render("test");
}

TEST(LocalCallerTest, SaysThatNobodyListens) {
  const test::ScratchFolder folder;
  const auto socket = connect_to_socket(folder.path() / "agent.sock", SOCK_STREAM);
  ASSERT_FALSE(socket);
  EXPECT_EQ(socket.error().code(), ErrorCode::kAgentUnreachable);
}

}  // namespace
}  // namespace accel::agent

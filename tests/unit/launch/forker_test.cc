// The process that workers are copies of, and who it belongs to.

#include "libaccel/launch/forker.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel::launch::forker_test {
namespace {

using ::testing::HasSubstr;

// What a launch says in the child of a program that has called init_launcher() and ended.
std::string error_after_daemon() {
  int told[2];
  if (::pipe(told) != 0) return "pipe";
  const pid_t program = ::fork();
  if (program == 0) {
    auto forker = Forker::start();
    const UniqueFd forker_end(static_cast<int>(::syscall(SYS_pidfd_open, forker->pid(), 0)));
    if (::fork() != 0) ::_exit(0);
    pollfd ended = {forker_end.get(), POLLIN, 0};
    ::poll(&ended, 1, -1);
    const auto shim = forker->launch({.socket = 1, .spec = 1, .folder = 1});
    const std::string text = shim ? "" : shim.error().what();
    (void)!::write(told[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(told[1]);
  ::waitpid(program, nullptr, 0);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(told[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(told[0]);
  return text;
}

TEST(Forker, EndsWithTheProgramThatStartedItAndSaysSo) {
  const std::string text = error_after_daemon();

  EXPECT_THAT(text, HasSubstr("it ends with the process that called init_launcher()"));
  EXPECT_THAT(text, HasSubstr("call init_launcher() after daemon()"));
}

}  // namespace
}  // namespace accel::launch::forker_test

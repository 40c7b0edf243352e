// What a program finds when spawn() has started it.

#include "runtime/supervisor/spawner.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace accel::supervisor {
namespace {

SpawnRequest shell(const std::string& text) {
  SpawnRequest request;
  request.argv = {"/bin/sh", "-c", text};
  request.env = {{"PATH", "/usr/bin:/bin"}};
  return request;
}

// How the program ends, as a shell tells it.
int end_of(const SpawnRequest& request) {
  SpawnResult result = spawn(request);
  const auto* const process = std::get_if<SpawnedProcess>(&result);
  if (process == nullptr) return -1;
  int status = 0;
  ::waitpid(process->pid(), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Spawner, SignalsWaitForAProgramThatIsStartedWithThemBlocked) {
  SpawnRequest request = shell("kill -INT $$; kill -TERM $$; exit 7");

  EXPECT_EQ(end_of(request), 128 + SIGINT);
  request.blocks_signals = true;
  EXPECT_EQ(end_of(request), 7);
}

TEST(Spawner, AProgramIsExecutedOnceItWasWaitedFor) {
  SpawnResult result = spawn(shell("exit 0"));
  auto* const process = std::get_if<SpawnedProcess>(&result);
  ASSERT_NE(process, nullptr);

  EXPECT_TRUE(process->wait_for_exec(std::chrono::seconds(20)));
  ::waitpid(process->pid(), nullptr, 0);
  EXPECT_FALSE(process->exec_failure());
}

}  // namespace
}  // namespace accel::supervisor

// What a program finds when spawn() has started it.

#include "runtime/supervisor/spawn/spawner.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel::supervisor::spawner_test {
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

// A signal to the group a moment later is theirs, whatever the child has come to.
TEST(Spawner, AProcessIsInTheGroupThatItJoinsFromTheBeginning) {
  SpawnRequest request = shell("exec sleep 60");
  request.session = Session::kNewGroup;
  const SpawnResult leader = spawn(request);
  ASSERT_TRUE(std::holds_alternative<SpawnedProcess>(leader));
  const pid_t group = std::get<SpawnedProcess>(leader).pid();
  (void)::setpgid(group, group);  // should it not have come so far
  request.session = Session::kJoin;
  request.join_group = group;
  const SpawnResult member = spawn(request);
  ASSERT_TRUE(std::holds_alternative<SpawnedProcess>(member));

  EXPECT_EQ(::getpgid(std::get<SpawnedProcess>(member).pid()), group);

  ::kill(-group, SIGKILL);
  ::waitpid(std::get<SpawnedProcess>(member).pid(), nullptr, 0);
  ::waitpid(group, nullptr, 0);
}

}  // namespace
}  // namespace accel::supervisor::spawner_test

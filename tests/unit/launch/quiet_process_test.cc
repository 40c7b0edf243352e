// Which signals reach a process between a program and its workers, and which of its copy.

#include "runtime/supervisor/kernel/quiet_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel::supervisor::quiet_process_test {
namespace {

volatile std::sig_atomic_t g_num_handled = 0;

void count(int) {
  g_num_handled = g_num_handled + 1;
}

TEST(QuietSpan, SignalsWaitForItsEnd) {
  const auto before = std::signal(SIGUSR1, count);
  g_num_handled = 0;
  int during = -1;
  {
    const QuietSpan quiet;
    ::raise(SIGUSR1);
    during = g_num_handled;
  }

  EXPECT_EQ(during, 0);
  EXPECT_EQ(g_num_handled, 1);
  std::signal(SIGUSR1, before);
}

TEST(QuietProcess, ForgetsWhatIsHandledAndKeepsWhatIsIgnored) {
  const pid_t copy = ::fork();
  if (copy == 0) {
    std::signal(SIGUSR1, count);
    std::signal(SIGHUP, SIG_IGN);
    forget_handlers();
    ::raise(SIGHUP);
    ::raise(SIGUSR1);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(copy, &status, 0), copy);

  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGUSR1);
}

}  // namespace
}  // namespace accel::supervisor::quiet_process_test

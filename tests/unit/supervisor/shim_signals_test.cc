// A fault of the shim itself still ends it; what others send is in tests/fault/stopping_test.cc.

#include "runtime/supervisor/kernel/shim_signals.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace accel::supervisor::shim_signals_test {
namespace {

TEST(ShimSignalsDeathTest, AbortStillEndsTheProcess) {
  EXPECT_EXIT(
      {
        (void)take_shim_signals();
        std::abort();
      },
      ::testing::KilledBySignal(SIGABRT),
      "");
}

TEST(ShimSignalsDeathTest, EventsAreBlockedAndReadable) {
  EXPECT_EXIT(
      {
        const sigset_t events = take_shim_signals();
        ::raise(SIGUSR2);
        ::raise(SIGTERM);
        int signal = 0;
        ::sigwait(&events, &signal);
        std::_Exit(signal);
      },
      ::testing::ExitedWithCode(SIGTERM),
      "");
}

}  // namespace
}  // namespace accel::supervisor::shim_signals_test

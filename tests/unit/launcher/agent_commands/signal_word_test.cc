#include "launcher/agent_commands/signal_word.h"

#include <csignal>

#include <gtest/gtest.h>

namespace accel::launcher::signal_word_test {
namespace {

TEST(SignalWord, IsANumberOrANameWithOrWithoutSig) {
  for (const char* word : {"15", "TERM", "SIGTERM", "term", "sigterm"})
    EXPECT_EQ(signal_of(word), SIGTERM) << word;
  EXPECT_EQ(signal_of("SIGUSR1"), SIGUSR1);
}

TEST(SignalWord, WhatIsNoSignalIsNone) {
  for (const char* word : {"", "SIG", "SIGSIG", "0", "-9", "65", "1000000", "9x", "NOPE", "KILL "})
    EXPECT_EQ(signal_of(word), std::nullopt) << word;
}

}  // namespace
}  // namespace accel::launcher::signal_word_test

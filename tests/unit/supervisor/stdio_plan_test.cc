#include "runtime/supervisor/logs/stdio_plan.h"

#include <gtest/gtest.h>

namespace accel::supervisor::stdio_plan_test {
namespace {

constexpr OwnerTerminals kOnTerminal{.in = true, .out = true, .err = true};
constexpr OwnerTerminals kNoTerminal{};

WorkerSpec worker_of_rank(int rank) {
  WorkerSpec worker;
  worker.local_rank = rank;
  worker.global_rank = rank;
  return worker;
}

TEST(StreamRoute, GoesToTheConsoleByDefault) {
  const StreamRoute route = route_of(worker_of_rank(0), Stream::kOut);

  EXPECT_TRUE(route.to_console);
  EXPECT_FALSE(route.to_file);
}

TEST(StreamRoute, GoesToBothWhenTeed) {
  WorkerSpec worker = worker_of_rank(0);
  worker.tee = Streams::kErr;

  EXPECT_TRUE(route_of(worker, Stream::kErr).to_console);
  EXPECT_TRUE(route_of(worker, Stream::kErr).to_file);
  EXPECT_FALSE(route_of(worker, Stream::kOut).to_file);
}

TEST(StreamRoute, RedirectsOnlyTheStreamThatWasNamed) {
  WorkerSpec worker = worker_of_rank(0);
  worker.redirect = Streams::kErr;

  EXPECT_TRUE(route_of(worker, Stream::kOut).to_console);
  EXPECT_FALSE(route_of(worker, Stream::kErr).to_console);
}

TEST(StreamRoute, ATeedStreamIsNotTakenOffTheConsoleByARedirect) {
  WorkerSpec worker = worker_of_rank(0);
  worker.redirect = Streams::kAll;
  worker.tee = Streams::kOut;

  EXPECT_TRUE(route_of(worker, Stream::kOut).to_console);
  EXPECT_FALSE(route_of(worker, Stream::kErr).to_console);
}

TEST(StdioPlan, OtherRanksGetPipesAndNoInput) {
  const StdioPlan plan =
      plan_stdio(worker_of_rank(1), 2, LogPolicy{}, ConsolePolicy{.use_pty = true}, kOnTerminal);

  EXPECT_EQ(plan.in, InputKind::kNull);
  EXPECT_EQ(plan.out, OutputKind::kPipe);
  EXPECT_EQ(plan.err, OutputKind::kPipe);
  EXPECT_EQ(plan.terminal, TerminalSetup::kNone);
}

TEST(StdioPlan, WorkersThatStopByTheirInputAllHaveOneThatStaysOpen) {
  const ConsolePolicy console{.use_pty = true, .stop_by_input = true};
  for (const int rank : {0, 1}) {
    const StdioPlan plan = plan_stdio(worker_of_rank(rank), 2, LogPolicy{}, console, kOnTerminal);

    EXPECT_EQ(plan.in, InputKind::kHeldPipe);
    EXPECT_EQ(plan.out, OutputKind::kPipe);
    EXPECT_EQ(plan.terminal, TerminalSetup::kNone);
  }
}

TEST(StdioPlan, RankZeroGetsAPseudoTerminalOnATerminal) {
  const StdioPlan plan =
      plan_stdio(worker_of_rank(0), 2, LogPolicy{}, ConsolePolicy{.use_pty = true}, kOnTerminal);

  EXPECT_EQ(plan.in, InputKind::kPseudoTerminal);
  EXPECT_EQ(plan.out, OutputKind::kPseudoTerminal);
  EXPECT_EQ(plan.err, OutputKind::kPseudoTerminal);
  EXPECT_EQ(plan.terminal, TerminalSetup::kOwnSession);
}

TEST(StdioPlan, StandardErrorOffTheTerminalGetsAPipe) {
  const StdioPlan plan = plan_stdio(worker_of_rank(0),
                                    2,
                                    LogPolicy{},
                                    ConsolePolicy{.use_pty = true},
                                    {.in = true, .out = true, .err = false});

  EXPECT_EQ(plan.out, OutputKind::kPseudoTerminal);
  EXPECT_EQ(plan.err, OutputKind::kPipe);
}

TEST(StdioPlan, AMergedStandardErrorGoesWhereStandardOutputGoes) {
  const LogPolicy merged{.merge_stderr = true};
  const OwnerTerminals out_only = {.in = true, .out = true, .err = false};

  const StdioPlan alone = plan_stdio(
      worker_of_rank(0), 1, merged, ConsolePolicy{.use_pty = true, .foreground = true}, out_only);
  EXPECT_EQ(alone.err, OutputKind::kInherited);
  EXPECT_EQ(plan_stdio(worker_of_rank(0), 2, merged, ConsolePolicy{.use_pty = true}, out_only).err,
            OutputKind::kPseudoTerminal);
}

TEST(StdioPlan, WithoutAPseudoTerminalTypedInputIsPumpedThroughAPipe) {
  const StdioPlan plan =
      plan_stdio(worker_of_rank(0), 2, LogPolicy{}, ConsolePolicy{}, kOnTerminal);

  EXPECT_EQ(plan.in, InputKind::kPumpedPipe);
  EXPECT_EQ(plan.out, OutputKind::kPipe);
}

TEST(StdioPlan, InputThatIsNoTerminalIsInherited) {
  const StdioPlan plan =
      plan_stdio(worker_of_rank(0), 2, LogPolicy{}, ConsolePolicy{}, kNoTerminal);

  EXPECT_EQ(plan.in, InputKind::kInherited);
}

TEST(StdioPlan, AWorkerAloneOwnsTheTerminal) {
  const StdioPlan plan = plan_stdio(worker_of_rank(0),
                                    1,
                                    LogPolicy{},
                                    ConsolePolicy{.use_pty = true, .foreground = true},
                                    kOnTerminal);

  EXPECT_EQ(plan.in, InputKind::kInherited);
  EXPECT_EQ(plan.out, OutputKind::kInherited);
  EXPECT_EQ(plan.err, OutputKind::kInherited);
  EXPECT_EQ(plan.terminal, TerminalSetup::kForeground);
}

TEST(StdioPlan, AWorkerAloneWhoseOutputIsKeptGetsAPseudoTerminal) {
  WorkerSpec worker = worker_of_rank(0);
  worker.tee = Streams::kAll;

  const StdioPlan plan = plan_stdio(worker,
                                    1,
                                    LogPolicy{.dir = "/logs"},
                                    ConsolePolicy{.use_pty = true, .foreground = true},
                                    kOnTerminal);

  EXPECT_EQ(plan.out, OutputKind::kPseudoTerminal);
  EXPECT_EQ(plan.terminal, TerminalSetup::kOwnSession);
}

TEST(StdioPlan, AWorkerAloneKeepsTheTerminalAsInputWhenItsOutputIsPiped) {
  WorkerSpec worker = worker_of_rank(0);
  worker.tee = Streams::kAll;

  const StdioPlan plan = plan_stdio(worker,
                                    1,
                                    LogPolicy{.dir = "/logs"},
                                    ConsolePolicy{.use_pty = true, .foreground = true},
                                    {.in = true, .out = false, .err = false});

  EXPECT_EQ(plan.in, InputKind::kInherited);
  EXPECT_EQ(plan.out, OutputKind::kPipe);
  EXPECT_EQ(plan.terminal, TerminalSetup::kForeground);
}

}  // namespace
}  // namespace accel::supervisor::stdio_plan_test

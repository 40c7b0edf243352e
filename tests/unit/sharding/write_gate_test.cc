// The gate between reading shards and writing them.

#include "libaccel/engine/remote/write_gate.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::sharding::write_gate_test {
namespace {

TEST(WriteGate, LetsManyIn) {
  WriteGate gate;
  const WriteGate::Pass one(gate);
  bool is_in = false;
  std::jthread([&] {
    const WriteGate::Pass other(gate);
    is_in = true;
  }).join();
  EXPECT_TRUE(is_in);
}

TEST(WriteGate, ClosesWhenTheLastOneHasLeft) {
  WriteGate gate;
  std::atomic<bool> has_left = false;
  std::optional<WriteGate::Pass> pass;
  pass.emplace(gate);
  std::jthread closer([&] {
    gate.close();
    EXPECT_TRUE(has_left);
    gate.open();
  });
  has_left = true;
  pass.reset();
}

TEST(WriteGate, RefusesEveryThreadWhileItIsClosed) {
  WriteGate gate;
  gate.close();
  EXPECT_THROW({ const WriteGate::Pass pass(gate); }, Error);
  std::jthread([&] { EXPECT_THROW({ const WriteGate::Pass pass(gate); }, Error); }).join();
  gate.open();
  const WriteGate::Pass pass(gate);
}

}  // namespace
}  // namespace accel::sharding::write_gate_test

#include "launcher/text/program.h"

#include <gtest/gtest.h>

#include "launcher/flags/flag_table.h"

namespace accel::launcher::program_test {
namespace {

TEST(Program, EachSpeaksTheWordsOfItsPeer) {
  EXPECT_EQ(spelled("num_processes", Program::kLaunch), "--num_processes");
  EXPECT_EQ(spelled("num_processes", Program::kTorchrun), "--nproc-per-node");
  EXPECT_EQ(spelled("num_machines", Program::kTorchrun), "--nnodes");
  EXPECT_EQ(spelled("machine_rank", Program::kTorchrun), "--node-rank");
  EXPECT_EQ(spelled("main_process_ip", Program::kTorchrun), "--master-addr");
  EXPECT_EQ(spelled("main_process_port", Program::kTorchrun), "--master-port");
}

TEST(Program, FlagsOfOneNameDifferByTheirHyphens) {
  EXPECT_EQ(spelled("max_restarts", Program::kLaunch), "--max_restarts");
  EXPECT_EQ(spelled("max_restarts", Program::kTorchrun), "--max-restarts");
  EXPECT_EQ(spelled("nnodes", Program::kTorchrun), "--nnodes");
}

TEST(Program, BothNamesAreFlags) {
  for (const FlagNames& names : flags_of_two_names()) {
    EXPECT_NE(find_flag(names.torchrun), nullptr) << names.torchrun;
    EXPECT_NE(find_flag(names.own), nullptr) << names.own;
  }
}

TEST(Program, IsKnownByItsName) {
  EXPECT_EQ(name_of(program_of("accel-torchrun")), "accel-torchrun");
  EXPECT_EQ(name_of(program_of("accel-launch")), "accel-launch");
  EXPECT_EQ(program_of("train"), Program::kLaunch);
}

}  // namespace
}  // namespace accel::launcher::program_test

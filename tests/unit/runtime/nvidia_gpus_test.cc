// GPUs as the driver shows them, and which must not speak to each other directly.

#include "runtime/nvidia_gpus.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::nvidia_gpus_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NvidiaMachine machine_of(const std::string& driver, const std::vector<std::string>& names) {
  NvidiaMachine machine = {.driver_version = driver};
  for (const std::string& name : names) machine.gpus.push_back({.name = name});
  return machine;
}

const std::string k4090 = "NVIDIA GeForce RTX 4090";
const EnvMap kBoth = {{"NCCL_IB_DISABLE", "1"}, {"NCCL_P2P_DISABLE", "1"}};

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(NvidiaGpus, DriverVersionOfBothKindsOfModule) {
  EXPECT_EQ(
      driver_version_in(
          "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC "
          "2023\nGCC version:  gcc version 12.3.0\n"),
      "535.129.03");
  EXPECT_EQ(
      driver_version_in(
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build\n"),
      "550.54.14");
  EXPECT_EQ(driver_version_in("NVRM version: none\nGCC version: 12.3.0\n"), "");
}

TEST(NvidiaGpus, SeriesAndDriverDecide) {
  struct Case {
    const char* driver;
    std::vector<std::string> names;
    bool lacks;
  };
  const Case cases[] = {
      {"535.129.03", {k4090, k4090}, true},
      {"550.40.06", {k4090, k4090}, true},
      {"550.40.07", {k4090, k4090}, false},
      {"550.54.14", {k4090, k4090}, false},
      {"560.28", {k4090, k4090}, false},
      {"535.129.03", {k4090}, false},
      {"535.129.03", {"NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4060 Ti"}, true},
      {"535.129.03", {"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"}, false},
      {"535.129.03", {"NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada Generation"}, false},
      {"", {k4090, k4090}, false}};
  for (const Case& at : cases) {
    EXPECT_EQ(lacks_peer_access(machine_of(at.driver, at.names)), at.lacks)
        << at.driver << " " << at.names[0];
  }
}

TEST(NvidiaGpus, VariablesOfTheUserStay) {
  const NvidiaMachine machine = machine_of("535.129.03", {k4090, k4090});

  EXPECT_EQ(peer_access_variables(machine, {}), kBoth);
  EXPECT_EQ(peer_access_variables(machine, {{"NCCL_P2P_DISABLE", "0"}}),
            (EnvMap{{"NCCL_IB_DISABLE", "1"}}));
  EXPECT_THAT(peer_access_variables(machine, kBoth), IsEmpty());
  EXPECT_THAT(peer_access_variables(machine_of("550.40.07", {k4090, k4090}), {}), IsEmpty());
}

TEST(NvidiaGpus, AreReadInTheOrderOfTheirAddresses) {
  const test::ScratchFolder folder;
  const std::filesystem::path proc = std::filesystem::path(folder.path()) / "proc";
  const std::filesystem::path pci = std::filesystem::path(folder.path()) / "pci";
  write_file(proc / "version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n");
  write_file(proc / "gpus/0000:41:00.0/information",
             "Model: \t\t NVIDIA GeForce RTX 4080\nIRQ:   \t\t 120\n");
  write_file(proc / "gpus/0000:01:00.0/information", "Model: \t\t NVIDIA GeForce RTX 4090\n");
  write_file(pci / "0000:41:00.0/local_cpulist", "4-6,8\n");

  const NvidiaMachine machine = read_nvidia_machine(proc.string(), pci.string());

  EXPECT_EQ(machine.driver_version, "535.129.03");
  ASSERT_EQ(machine.gpus.size(), 2U);
  EXPECT_EQ(machine.gpus[0].name, k4090);
  EXPECT_THAT(machine.gpus[0].cpus, IsEmpty());
  EXPECT_EQ(machine.gpus[1].name, "NVIDIA GeForce RTX 4080");
  EXPECT_THAT(machine.gpus[1].cpus, ElementsAre(4, 5, 6, 8));
}

TEST(NvidiaGpus, MachineWithoutADriverHasNone) {
  const NvidiaMachine machine = read_nvidia_machine("/nowhere", "/nowhere");

  EXPECT_EQ(machine.driver_version, "");
  EXPECT_THAT(machine.gpus, IsEmpty());
}

TEST(NvidiaGpus, CpuListsThatAreNone) {
  for (const char* text : {"", "a", "3-1", "1,,2", "-1", "1-", "0-99999999999"}) {
    EXPECT_THAT(parse_cpu_list(text), IsEmpty()) << text;
  }
}

TEST(NvidiaGpus, VisibleOnesAreNumberedAnew) {
  const NvidiaMachine machine = machine_of("550.40.07", {"a", "b", "c"});

  EXPECT_EQ(visible_gpu(machine, {}, 1)->name, "b");
  EXPECT_EQ(visible_gpu(machine, {{"CUDA_VISIBLE_DEVICES", "2,0"}}, 0)->name, "c");
  EXPECT_EQ(visible_gpu(machine, {{"CUDA_VISIBLE_DEVICES", "2,0"}}, 2), nullptr);
  EXPECT_EQ(visible_gpu(machine, {{"CUDA_VISIBLE_DEVICES", "GPU-1234"}}, 0), nullptr);
  EXPECT_EQ(visible_gpu(machine, {}, 3), nullptr);
}

}  // namespace
}  // namespace accel::nvidia_gpus_test

#include "launcher/devices/accelerators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::accelerators_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

// What the peer sets: tests/peer/launch_options.py.
class Accelerators : public test::LaunchPlanFixture {
 protected:
  Words with(const std::string& type, Words more = {}) {
    Words words = file("distributed_type: " + type + "\nnum_processes: 2\ngpu_ids: '0,1'\n");
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(Accelerators, AreGpusWhoseIdsGoIntoTheirOwnVariable) {
  const LaunchPlan result = plan(with("MULTI_XPU"));

  EXPECT_EQ(result.spec.env_mode, EnvMode::kDistributed);
  EXPECT_EQ(result.spec.workers.size(), 2u);
  EXPECT_THAT(result.spec.env, Contains(Pair("ZE_AFFINITY_MASK", "0,1")));
  EXPECT_THAT(result.spec.env, Not(Contains(Key("CUDA_VISIBLE_DEVICES"))));
  EXPECT_THAT(result.spec.env, Not(Contains(Key("ACCELERATE_USE_CPU"))));
  EXPECT_THAT(plan(with("MULTI_HPU", {"--use_fsdp"})).spec.env,
              Contains(Pair("HABANA_VISIBLE_MODULES", "0,1")));
  EXPECT_THAT(plan(with("MULTI_GPU", {"--cpu"})).spec.env,
              Contains(Pair("CUDA_VISIBLE_DEVICES", "0,1")));
}

TEST_F(Accelerators, GpusOfNvidiaSayNothingAboutThem) {
  num_gpus_ = 1;

  EXPECT_THAT(plan(with("MULTI_NPU")).spec.workers.size(), 2u);
  EXPECT_THAT(refused(with("MULTI_NPU", {"--gpu_ids", "3"})).message(),
              HasSubstr("Less than two GPU ids were configured"));
}

TEST_F(Accelerators, EveryTypeOfAFileIsOneOrGpusOrNothingOfTheKind) {
  for (const char* type : {"MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_NEURON"}) {
    ASSERT_NE(find_accelerator(type), nullptr) << type;
    EXPECT_THAT(plan(with(type)).spec.env,
                Contains(Pair(find_accelerator(type)->visible_variable, "0,1")));
  }
  for (const char* type : {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "XLA"}) {
    EXPECT_EQ(find_accelerator(type), nullptr) << type;
  }
}

}  // namespace
}  // namespace accel::launcher::accelerators_test

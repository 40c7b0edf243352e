// Models with weights on disk, and the Accelerator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/offload.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::prepared_offload_test {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential partly_on_disk(const test::ScratchFolder& folder) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
  dispatch_model(*net, {{"0", "disk"}, {"1", "cpu"}}, {.offload_dir = folder.file("weights")});
  return net;
}

TEST(PreparedOffload, AModelOnDiskAndInMemoryIsTold) {
  const test::ScratchFolder folder;
  const torch::nn::Linear whole(2, 2);
  EXPECT_FALSE(Accelerator::verify_device_map(*whole));
  EXPECT_TRUE(Accelerator::verify_device_map(*partly_on_disk(folder)));
}

TEST(PreparedOffload, OneProcessTrainsWhatIsInMemory) {
  const test::ScratchFolder folder;
  Accelerator accelerator;
  auto net = partly_on_disk(folder);
  auto model = accelerator.prepare_model(net);

  accelerator.backward(model(at::ones({1, 2})).sum());

  EXPECT_TRUE(net[1]->parameters()[0].grad().defined());
  EXPECT_FALSE(net[0]->parameters()[0].grad().defined());
  PartialState::reset();
}

TEST(PreparedOffload, SeveralProcessesRefuseToTrainItAndEvaluateIt) {
  test::run_ranks(2, [] {
    const test::ScratchFolder folder;
    Accelerator accelerator;
    auto net = partly_on_disk(folder);
    const Error error = test::error_of([&] { (void)accelerator.prepare_model(net); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("can only be read"));
    auto model = accelerator.prepare_model(net, {.evaluation_mode = true});
    EXPECT_EQ(model(at::ones({1, 2})).numel(), 1);
    accelerator.wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::prepared_offload_test

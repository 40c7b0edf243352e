// DiskStep: the same bits as a step in memory, with few buckets in memory at once.

#include "libaccel/engine/optim/disk_step.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/sin.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/lion.h>
#include <accel/lomo.h>
#include <accel/muon.h>
#include <accel/schedule_free.h>

#include "libaccel/engine/optim/fused_step.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::disk_step_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::Optimizer;

constexpr DiskBuffers kSmall{.num_buffers = 2, .bucket_bytes = 128 << 10};
// After a step: the kernel may keep pages of a bucket that was written for a while. All states are more than five buckets.
constexpr std::size_t kMostResident = 3 * kSmall.bucket_bytes;

at::Tensor waves(at::IntArrayRef shape, double start) {
  return at::sin(at::linspace(start, start + 7.0, c10::multiply_integers(shape))).view(shape);
}

// Of less than a bucket, of several with an odd rest, not in row-major order, without elements.
std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> made{waves({5, 7}, 0.1),
                               waves({211, 301}, 0.2),
                               waves({3}, 0.3),
                               waves({160, 130}, 0.4).t(),
                               waves({0}, 0.5)};
  for (at::Tensor& parameter : made) parameter.requires_grad_(true);
  return made;
}

void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::empty_like(parameter).copy_(
        waves(parameter.sizes(), 1.0 + step + 0.01 * static_cast<double>(parameter.numel())));
  }
}

bool are_same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor one = a.detach().contiguous();
  const at::Tensor other = b.detach().contiguous();
  return one.nbytes() == other.nbytes() &&
         (one.nbytes() == 0 ||
          std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0);
}

using Maker = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

template <typename O, typename Options>
Maker made_with(Options options) {
  return [options](std::vector<at::Tensor> list) {
    return std::make_unique<O>(std::move(list), options);
  };
}

struct Case {
  std::string name;
  Maker make;
  bool has_kernel = false;
};

std::vector<Case> cases() {
  using namespace torch::optim;  // NOLINT: the list below
  return {
      {"Sgd", made_with<SGD>(SGDOptions(0.1)), true},
      {"SgdMomentum", made_with<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2)), true},
      {"Adam", made_with<Adam>(AdamOptions(0.01).weight_decay(0.1)), true},
      {"AdamW", made_with<AdamW>(AdamWOptions(0.01).betas({0.8, 0.95})), true},
      {"AdamWAmsgrad", made_with<AdamW>(AdamWOptions(0.01).amsgrad(true)), true},
      {"RmspropCentered",
       made_with<RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true)),
       false},
      {"Adagrad", made_with<Adagrad>(AdagradOptions(0.1).lr_decay(0.1)), false},
      {"Lion", made_with<Lion>(LionOptions(0.01)), false},
  };
}

void expect_same_states(Optimizer& one,
                        const std::vector<at::Tensor>& of_one,
                        Optimizer& other,
                        const std::vector<at::Tensor>& of_other) {
  const OptimizerTraits& traits = *traits_of(one);
  ASSERT_EQ(one.state().size(), other.state().size());
  for (std::size_t p = 0; p < of_one.size(); ++p) {
    const auto found = one.state().find(of_one[p].unsafeGetTensorImpl());
    if (found == one.state().end()) continue;
    const OptimizerStateView a(traits, *found->second);
    const OptimizerStateView b(traits, *other.state().at(of_other[p].unsafeGetTensorImpl()));
    for (std::size_t n = 0; n < a.numbers.size(); ++n) EXPECT_EQ(*a.numbers[n], *b.numbers[n]);
    for (std::size_t f = 0; f < a.tensors.size(); ++f) {
      ASSERT_EQ(a.tensors[f]->defined(), b.tensors[f]->defined());
      if (!a.tensors[f]->defined()) continue;
      EXPECT_EQ(a.tensors[f]->sizes(), b.tensors[f]->sizes());
      EXPECT_TRUE(are_same_bits(*a.tensors[f], *b.tensors[f])) << "field " << f << " of " << p;
    }
  }
}

class DiskStepTest : public testing::TestWithParam<Case> {
 protected:
  // Both kinds of step on the same parameters, one of them on disk.
  enum class When { kInStep, kInBackward };
  void expect_same_bits(bool is_fused, When when = When::kInStep) {
    const std::vector<at::Tensor> in_memory = parameters();
    const std::vector<at::Tensor> on_disk = parameters();
    const auto resident = GetParam().make(in_memory);
    const auto paged = GetParam().make(on_disk);
    DiskStep disk(*paged, folder_.path(), kSmall);
    const auto step_of = [is_fused](Optimizer& optimizer) -> DiskStep::Step {
      return [&optimizer, is_fused](const DiskStep::IsPadded& is_padded) {
        if (is_fused) return FusedStep(optimizer).step(is_padded);
        optimizer.step();
      };
    };
    const auto nobody = [](const at::Tensor&) { return false; };
    for (int step = 0; step < 4; ++step) {
      set_gradients(in_memory, step);
      set_gradients(on_disk, step);
      step_of (*resident)(nobody);
      for (std::size_t p = on_disk.size(); when == When::kInBackward && p-- > 0;)
        disk.step_in_backward().land(on_disk[p], on_disk[p].grad(), {}, step_of(*paged), nobody);
      disk.step(step_of(*paged), nobody);
      for (std::size_t p = 0; p < on_disk.size(); ++p)
        EXPECT_TRUE(are_same_bits(in_memory[p], on_disk[p])) << "parameter " << p << " at " << step;
    }
    EXPECT_EQ(paged->param_groups()[0].params().size(), on_disk.size());
    expect_same_states(*resident, in_memory, *paged, on_disk);
  }

  test::ScratchFolder folder_;
};

TEST_P(DiskStepTest, HasTheBitsOfAStepInMemory) {
  expect_same_bits(/*is_fused=*/false);
}

TEST_P(DiskStepTest, HasTheBitsOfFusedKernels) {
  if (!GetParam().has_kernel) GTEST_SKIP() << "LibTorch has no kernel";
  expect_same_bits(/*is_fused=*/true);
}

TEST_P(DiskStepTest, HasTheBitsOfAStepInMemoryWhenItStepsInTheBackward) {
  expect_same_bits(/*is_fused=*/false, When::kInBackward);
  if (GetParam().has_kernel) expect_same_bits(/*is_fused=*/true, When::kInBackward);
}

INSTANTIATE_TEST_SUITE_P(Optimizers,
                         DiskStepTest,
                         testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

class AdamWOnDisk : public testing::Test {
 protected:
  AdamWOnDisk() : parameters_(parameters()), optimizer_(parameters_, 0.01) {}

  void step_of_both(DiskStep* disk, int step) {
    set_gradients(parameters_, step);
    const auto plain = [this](const DiskStep::IsPadded&) { optimizer_.step(); };
    const auto nobody = [](const at::Tensor&) { return false; };
    disk == nullptr ? plain(nobody) : disk->step(plain, nobody);
  }

  std::vector<at::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
  test::ScratchFolder folder_;
};

TEST_F(AdamWOnDisk, LeavesNoStateInMemory) {
  DiskStep disk(optimizer_, folder_.path(), kSmall);
  for (int step = 0; step < 2; ++step) {
    step_of_both(&disk, step);
    EXPECT_GT(disk.num_buckets(), 5U);
    EXPECT_GE(disk.file().bytes(), std::size_t{2} * (211 * 301 + 160 * 130) * sizeof(float));
    EXPECT_LE(disk.file().resident_bytes(), kMostResident);
  }
}

TEST_F(AdamWOnDisk, ShowsNothingOfAStepInTheBackwardBeforeStep) {
  DiskStep disk(optimizer_, folder_.path(), kSmall);
  step_of_both(&disk, 0);
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : parameters_) before.push_back(parameter.detach().clone());
  const auto& state = optimizer_.state().at(parameters_[1].unsafeGetTensorImpl());
  auto& present = static_cast<torch::optim::AdamWParamState&>(*state);
  const at::Tensor average = present.exp_avg().clone();
  set_gradients(parameters_, 1);
  const auto plain = [this](const DiskStep::IsPadded&) { optimizer_.step(); };
  for (const at::Tensor& parameter : parameters_)
    disk.step_in_backward().land(
        parameter, parameter.grad(), {}, plain, [](const at::Tensor&) { return false; });

  EXPECT_TRUE(disk.speculation()->is_right());
  for (std::size_t p = 0; p < before.size(); ++p)
    EXPECT_TRUE(are_same_bits(before[p], parameters_[p])) << p;
  EXPECT_TRUE(are_same_bits(average, present.exp_avg()));
  EXPECT_EQ(present.step(), 1);
  parameters_[1].mutable_grad().mul_(0.5);
  EXPECT_FALSE(disk.speculation()->is_right());
}

TEST_F(AdamWOnDisk, LeavesNoFileBehind) {
  DiskStep disk(optimizer_, folder_.path(), kSmall);
  step_of_both(&disk, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(AdamWOnDisk, GoesOnFromStatesInMemoryAndBack) {
  const std::vector<at::Tensor> expected = parameters();
  torch::optim::AdamW resident(expected, 0.01);
  for (int step = 0; step < 4; ++step) {
    set_gradients(expected, step);
    resident.step();
  }
  step_of_both(nullptr, 0);
  {
    DiskStep disk(optimizer_, folder_.path(), kSmall);
    step_of_both(&disk, 1);
    EXPECT_LE(disk.file().resident_bytes(), kMostResident);
    step_of_both(&disk, 2);
  }
  step_of_both(nullptr, 3);  // states outlive what keeps them
  for (std::size_t p = 0; p < expected.size(); ++p)
    EXPECT_TRUE(are_same_bits(expected[p], parameters_[p])) << p;
  expect_same_states(resident, expected, optimizer_, parameters_);
}

TEST_F(AdamWOnDisk, StepsParametersThatGetTheirFirstGradientLater) {
  const std::vector<at::Tensor> expected = parameters();
  torch::optim::AdamW resident(expected, 0.01);
  DiskStep disk(optimizer_, folder_.path(), kSmall);
  const auto plain = [this](const DiskStep::IsPadded&) { optimizer_.step(); };
  for (int step = 0; step < 3; ++step) {
    set_gradients(expected, step);
    set_gradients(parameters_, step);
    if (step == 0) expected[1].mutable_grad().reset();
    if (step == 0) parameters_[1].mutable_grad().reset();
    resident.step();
    disk.step(plain, [](const at::Tensor&) { return false; });
  }
  for (std::size_t p = 0; p < expected.size(); ++p)
    EXPECT_TRUE(are_same_bits(expected[p], parameters_[p])) << p;
  expect_same_states(resident, expected, optimizer_, parameters_);
}

TEST_F(AdamWOnDisk, PutsTheGroupsBackWhenAStepFails) {
  DiskStep disk(optimizer_, folder_.path(), kSmall);
  set_gradients(parameters_, 0);
  int num_calls = 0;
  const auto failing = [&](const DiskStep::IsPadded&) {
    if (++num_calls == 3) throw Error(ErrorCode::kInternal, "no step");
    optimizer_.step();
  };
  EXPECT_EQ(test::error_of([&] {
              disk.step(failing, [](const at::Tensor&) { return false; });
            }).message(),
            "no step");
  EXPECT_EQ(optimizer_.param_groups()[0].params().size(), parameters_.size());
  for (const auto& [key, state] : optimizer_.state()) {
    EXPECT_TRUE(std::ranges::any_of(parameters_, [&, of = key](const at::Tensor& parameter) {
      return parameter.unsafeGetTensorImpl() == of;
    }));
  }
}

TEST_F(AdamWOnDisk, SaysThatTheDiskIsFullBeforeAnythingIsStepped) {
  test::FaultyDisk full;
  full.set_free_bytes(100'000);
  DiskStep disk(optimizer_, folder_.path(), kSmall, full);
  const at::Tensor before = parameters_[0].detach().clone();
  const Error error = test::error_of([&] { step_of_both(&disk, 0); });
  EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
  EXPECT_THAT(error.message(), HasSubstr("the optimizer's state"));
  EXPECT_THAT(error.remedy(), HasSubstr("offload_optimizer_nvme_path"));
  EXPECT_TRUE(are_same_bits(before, parameters_[0]));
  EXPECT_TRUE(optimizer_.state().empty());
}

TEST_F(AdamWOnDisk, NamesAFolderThatIsMissing) {
  const Error error =
      test::error_of([&] { DiskStep(optimizer_, folder_.file("missing"), kSmall); });
  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_THAT(error.message(), HasSubstr(folder_.file("missing")));
  EXPECT_THAT(error.message(), HasSubstr("No such file or directory"));
  EXPECT_THAT(error.remedy(), HasSubstr("offload_optimizer_nvme_path"));
}

TEST_F(AdamWOnDisk, NamesBuffersThatAreTooFew) {
  const Error error = test::error_of(
      [&] { DiskStep(optimizer_, folder_.path(), {.num_buffers = 1, .bucket_bytes = 4096}); });
  EXPECT_THAT(error.message(), HasSubstr("1 buffers of 4096 bytes, expected at least 2"));
}

TEST(DiskStep, RefusesOptimizersWhoseStatesCannotBeTakenApart) {
  const test::ScratchFolder folder;
  const auto refusal = [&](Optimizer&& optimizer) {
    const Error error = test::error_of([&] { DiskStep(optimizer, folder.path()); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.message();
  };
  EXPECT_THAT(refusal(torch::optim::LBFGS(parameters())), HasSubstr("need all parameters"));
  EXPECT_THAT(refusal(AdamWScheduleFree(parameters())), HasSubstr("AdamWScheduleFree"));
  EXPECT_THAT(refusal(Lomo(parameters())), HasSubstr("steps in the backward"));
}

TEST(DiskStep, StepsTensorsOfMuonWhole) {
  const test::ScratchFolder folder;
  std::vector<at::Tensor> expected{waves({211, 301}, 0.2), waves({16, 8}, 0.1)};
  std::vector<at::Tensor> on_disk{expected[0].clone(), expected[1].clone()};
  Muon resident(expected, MuonOptions(0.01));
  Muon paged(on_disk, MuonOptions(0.01));
  DiskStep disk(paged, folder.path(), kSmall);
  for (int step = 0; step < 2; ++step) {
    set_gradients(expected, step);
    set_gradients(on_disk, step);
    resident.step();
    disk.step([&](const DiskStep::IsPadded&) { paged.step(); },
              [](const at::Tensor&) { return false; });
  }
  for (std::size_t p = 0; p < expected.size(); ++p)
    EXPECT_TRUE(are_same_bits(expected[p], on_disk[p])) << p;
  EXPECT_LE(disk.file().resident_bytes(), kMostResident);
}

}  // namespace
}  // namespace accel::disk_step_test

// Checkpoints under a policy of mixed precision: what of masters and roundings they save, load and show to whom.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/seen_parameters.h>

#include "tests/support/peak_memory.h"
#include "tests/support/precision_trainer.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::precision_of_checkpoints_test {
namespace {

using test::Cut;
using test::flat;
using test::kBf16;
using test::kWidth;
using test::Layout;
using test::Rule;
using test::seeded_net;
using Trainer = test::PrecisionTrainer;

class PrecisionOfCheckpoints : public test::PrecisionOnRanks {};

TEST_P(PrecisionOfCheckpoints, GoesOnToTheBitAfterACheckpoint) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer whole(kBf16);
    whole.train(0, 2);
    whole.accelerator().save_state(folder.file("state"));
    EXPECT_EQ(whole.values().scalar_type(), at::kBFloat16);
    whole.train(2, 4);

    Trainer resumed(kBf16);
    resumed.accelerator().load_state(folder.file("state"));
    resumed.train(2, 4);

    EXPECT_TRUE(at::equal(resumed.values(), whole.values()));
  });
}

TEST_P(PrecisionOfCheckpoints, SavesMastersThatGoOnWithoutThePolicyAndBack) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer rounded(kBf16);
    rounded.train(0, 2);
    rounded.accelerator().save_state(folder.file("rounded"));

    Trainer plain(std::nullopt);
    plain.accelerator().load_state(folder.file("rounded"));

    EXPECT_EQ(plain.values().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(plain.values().to(at::kBFloat16), rounded.values()));
    EXPECT_FALSE(at::equal(plain.values(), rounded.values().to(at::kFloat)))
        << "rounded on the way";

    plain.accelerator().save_state(folder.file("plain"));
    Trainer back(kBf16);
    back.accelerator().load_state(folder.file("plain"));
    back.train(2, 4);
    rounded.train(2, 4);

    EXPECT_TRUE(at::equal(back.values(), rounded.values()));
  });
}

TEST_P(PrecisionOfCheckpoints, ConvertsFrozenParametersAndSavesThemWhole) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    const auto freeze = [](torch::nn::Sequential net) {
      for (at::Tensor& parameter : net[2]->as<torch::nn::Linear>()->parameters())
        parameter.set_requires_grad(false);
      return net;
    };
    const at::Tensor original = flat(seeded_net()[2]->parameters());
    Trainer rounded(kBf16, Rule::kAdamW, freeze(seeded_net()));
    EXPECT_EQ(flat(rounded.net()[2]->parameters()).scalar_type(), at::kBFloat16);
    rounded.train(0, 1);
    rounded.accelerator().save_state(folder.file("state"));

    Trainer plain(std::nullopt, Rule::kAdamW, freeze(seeded_net()));
    plain.accelerator().load_state(folder.file("state"));

    EXPECT_TRUE(at::equal(flat(plain.net()[2]->parameters()), original));
  });
}

TEST_P(PrecisionOfCheckpoints, GoesOnAfterASaveOfTheModelInsideASaveOfTheState) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16, Rule::kAdamW, seeded_net());
    trainer.accelerator().register_save_state_pre_hook(
        [&](const auto&, const auto&) { trainer.save_model(folder.file("model")); });
    trainer.accelerator().save_state(folder.file("state"));
    EXPECT_EQ(flat(trainer.net()[0]->parameters()).scalar_type(), at::kBFloat16);
    trainer.train(0, 1);
  });
}

// Each rank writes its masters where they belong in the file, and reads them from there.
TEST_P(PrecisionOfCheckpoints, SavesAndLoadsWithoutAllMastersOnAnyRank) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    constexpr std::int64_t kWide = 1024;
    constexpr std::int64_t kAllBytes = 4 * kWide * kWide * 4;
    torch::nn::Sequential net;
    for (int layer = 0; layer < 4; ++layer)
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWide, kWide).bias(false)));
    Trainer trainer(kBf16, Rule::kSgd, net);
    Accelerator& accelerator = trainer.accelerator();
    accelerator.save_state(folder.file("first"));

    const test::PeakMemory saving;
    accelerator.save_state(folder.file("second"));
    constexpr std::int64_t kRoom = kAllBytes / 2;  // 4 MiB are collected before they are written
    EXPECT_LT(saving.growth_bytes(), kRoom) << test::PeakMemory::report();

    const test::PeakMemory loading;
    accelerator.load_state(folder.file("second"));
    const std::int64_t own_bytes = kAllBytes / GetParam().ranks;  // read before they are taken
    EXPECT_LT(loading.growth_bytes(), own_bytes + kRoom) << test::PeakMemory::report();
  });
}

struct ModelRecord : Stateful {
  explicit ModelRecord(const at::Tensor& seen) : parameter(seen) {}
  [[nodiscard]] StateDict state_dict() const override {
    return {.tensors = {{"parameter", parameter.detach().clone()}}};
  }
  void load_state_dict(const StateDict& state) override {
    saved = state.tensors.at("parameter");
    at_load = parameter.scalar_type();
  }

  at::Tensor parameter;
  at::Tensor saved;
  at::ScalarType at_load = at::kBFloat16;
};

// Such as an average of the parameters.
TEST_P(PrecisionOfCheckpoints, LetsRegisteredObjectsSaveTheMasters) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor original = seeded_net()->parameters()[0].detach();
    ModelRecord record(trainer.net()->parameters()[0]);
    accelerator.register_for_checkpointing(record);

    accelerator.save_state(folder.file("state"));
    accelerator.load_state(folder.file("state"));

    EXPECT_TRUE(at::equal(record.saved, original)) << record.saved.scalar_type();
  });
}

// An object of the user's own, that says which parameters it looks at.
struct SeeingRecord final : ModelRecord, SeesParameters {
  SeeingRecord(const at::Tensor& seen, at::Tensor unseen)
      : ModelRecord(seen), other(std::move(unseen)) {}
  [[nodiscard]] StateDict state_dict() const override {
    other_at_save = other.scalar_type();
    return ModelRecord::state_dict();
  }
  void load_state_dict(const StateDict& state) override {
    other_at_load = other.scalar_type();
    ModelRecord::load_state_dict(state);
  }
  [[nodiscard]] std::vector<at::Tensor> parameters_seen() const override { return {parameter}; }

  at::Tensor other;
  mutable at::ScalarType other_at_save = at::kBFloat16;
  at::ScalarType other_at_load = at::kBFloat16;
};

TEST_P(PrecisionOfCheckpoints, ShowsRegisteredObjectsTheMastersThatTheySee) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16, Rule::kAdamW, seeded_net(), Cut::kUnitForEachModule);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor original = seeded_net()->parameters()[0].detach();
    const std::vector<at::Tensor> parameters = trainer.net()->parameters();
    SeeingRecord record(parameters.front(), parameters.back());
    accelerator.register_for_checkpointing(record);

    accelerator.save_state(folder.file("state"));
    accelerator.load_state(folder.file("state"));

    EXPECT_TRUE(at::equal(record.saved, original)) << record.saved.scalar_type();
    EXPECT_EQ(record.at_load, at::kFloat);
    EXPECT_EQ(record.other_at_save, at::kBFloat16);
    EXPECT_EQ(record.other_at_load, at::kBFloat16);
  });
}

struct ThrowingRecord final : ModelRecord, SeesParameters {
  using ModelRecord::ModelRecord;
  [[nodiscard]] std::vector<at::Tensor> parameters_seen() const override {
    if (throws) throw Error(ErrorCode::kInvalidArgument, "sees nothing today");
    return {parameter};
  }
  bool throws = false;
};

// Of a save the writing rank alone asks it; the others must not wait for that one.
TEST_P(PrecisionOfCheckpoints, EndsOnAllRanksWhereARegisteredObjectOfOneThrows) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    ThrowingRecord record(trainer.net()->parameters()[0]);
    accelerator.register_for_checkpointing(record);
    accelerator.save_state(folder.file("state"));
    record.throws = accelerator.is_main_process();

    const auto expect_throw = [](const auto& call) {
      try {
        call();
        ADD_FAILURE() << "did not throw";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), ::testing::HasSubstr("sees nothing today"));
      }
    };
    expect_throw([&] { accelerator.save_state(folder.file("other")); });
    expect_throw([&] { accelerator.load_state(folder.file("state")); });

    record.throws = false;
    accelerator.load_state(folder.file("state"));
    trainer.train(0, 1);
    accelerator.wait_for_everyone();
  });
}

struct BlindRecord final : ModelRecord, SeesParameters {
  using ModelRecord::ModelRecord;
  [[nodiscard]] std::vector<at::Tensor> parameters_seen() const override { return seen; }
  std::vector<at::Tensor> seen;
};

// A view or a copy keeps the few bits that it was made of.
TEST_P(PrecisionOfCheckpoints, RefusesSeenTensorsThatAreNoParametersOnAllRanks) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor parameter = trainer.net()->parameters()[0];
    BlindRecord record(parameter);
    accelerator.register_for_checkpointing(record);

    for (const at::Tensor& unknown :
         {parameter.detach(), parameter.view({-1}), parameter.clone(), at::Tensor()}) {
      record.seen = {parameter, unknown};
      try {
        accelerator.save_state(folder.file("state"));
        ADD_FAILURE() << "did not throw";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), ::testing::HasSubstr("parameters_seen()"));
        EXPECT_THAT(error.message(),
                    ::testing::HasSubstr(unknown.defined() ? "tensor 1, of shape ["
                                                           : "tensor 1, which is undefined"));
        EXPECT_THAT(error.remedy(), ::testing::HasSubstr("model->parameters()"));
      }
    }
    record.seen = trainer.net()->parameters();
    accelerator.save_state(folder.file("state"));
    accelerator.wait_for_everyone();
  });
}

TEST_P(PrecisionOfCheckpoints, LetsHooksOfOneRankAndRegisteredObjectsSeeTheMasters) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor parameter = trainer.net()->parameters()[0];
    at::ScalarType at_save = at::kFloat;
    if (accelerator.is_last_process()) {
      accelerator.register_save_state_pre_hook(
          [&](const auto&, const auto&) { at_save = parameter.scalar_type(); });
      at_save = at::kBFloat16;
    }
    ModelRecord record(parameter);
    accelerator.register_for_checkpointing(record);

    accelerator.save_state(folder.file("state"));
    accelerator.load_state(folder.file("state"));

    EXPECT_EQ(at_save, at::kFloat);
    EXPECT_EQ(record.at_load, at::kFloat);
    EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  });
}

// A module under two names lists its buffers twice.
TEST_P(PrecisionOfCheckpoints, RoundsABufferOfTwoNamesOnce) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    const auto two_names = [](const torch::nn::BatchNorm1d& norm) {
      return torch::nn::Sequential(norm, norm);
    };
    torch::nn::BatchNorm1d norm(kWidth);
    Trainer rounded("bf16", Rule::kAdamW, two_names(norm));
    rounded.train(0, 2);
    const at::Tensor mean = norm->running_mean.clone();
    rounded.accelerator().save_state(folder.file("state"));
    rounded.train(2, 4);
    rounded.accelerator().load_state(folder.file("state"));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
    if (rounded.accelerator().is_main_process()) {
      EXPECT_TRUE(norm->running_mean.equal(mean));
    }
    torch::nn::BatchNorm1d same(kWidth);
    Trainer plain(std::nullopt, Rule::kAdamW, two_names(same));
    plain.accelerator().load_state(folder.file("state"));
    EXPECT_EQ(same->running_mean.scalar_type(), at::kFloat);
  });
}

// Averages of BatchNorm are bf16 while the model trains, and fp32 in files.
TEST_P(PrecisionOfCheckpoints, SavesBuffersInTheDtypeThatTheModelCameWith) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    torch::nn::BatchNorm1d norm(kWidth);
    Trainer rounded("bf16", Rule::kAdamW, torch::nn::Sequential(norm));
    rounded.train(0, 2);
    const at::Tensor mean = norm->running_mean.clone();
    rounded.accelerator().save_state(folder.file("state"));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);

    torch::nn::BatchNorm1d same(kWidth);
    Trainer plain(std::nullopt, Rule::kAdamW, torch::nn::Sequential(same));
    plain.accelerator().load_state(folder.file("state"));
    EXPECT_EQ(same->running_mean.scalar_type(), at::kFloat);
    // Rank 0's are what is saved.
    if (rounded.accelerator().is_main_process()) {
      EXPECT_TRUE(same->running_mean.equal(mean.to(at::kFloat)));
    }

    plain.accelerator().save_state(folder.file("plain"));
    rounded.train(2, 3);
    rounded.accelerator().load_state(folder.file("plain"));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
    if (rounded.accelerator().is_main_process()) {
      EXPECT_TRUE(norm->running_mean.equal(mean));
    }
    rounded.accelerator().wait_for_everyone();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    PrecisionOfCheckpoints,
    ::testing::Values(Layout{2, 2}, Layout{3, 3}, Layout{4, 4}, Layout{2, 1}, Layout{4, 2}),
    test::layout_name);

}  // namespace
}  // namespace accel::precision_of_checkpoints_test

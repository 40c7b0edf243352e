// Loads that look at files where they are mapped: nothing of a file is left in the objects, and states stay where they are.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>

#include "libaccel/engine/checkpoint/files/mapped_tensors.h"
#include "runtime/checkpoint/hashed_file.h"
#include "runtime/checkpoint/mapped_file.h"
#include "runtime/page_size.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::mapped_load_test {
namespace {

namespace fs = std::filesystem;

constexpr int kWidth = 300;
constexpr std::size_t kPages = 8;

struct Training {
  explicit Training(bool is_sharded) : accelerator(options_for(is_sharded)) {
    set_seed(7);
    net = torch::nn::Linear(kWidth, kWidth);
    auto [prepared, stepped] =
        accelerator.prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01));
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }
  static AcceleratorOptions options_for(bool is_sharded) {
    AcceleratorOptions options;
    if (is_sharded) options.fsdp_plugin.emplace();
    return options;
  }
  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      accelerator.backward((*model)(at::ones({2, kWidth})).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  // Of the first parameter that this rank steps.
  [[nodiscard]] at::Tensor average() const {
    auto& steps = optimizer->optimizer();
    const at::Tensor& parameter = steps.param_groups()[0].params()[0];
    auto& state = steps.state().at(parameter.unsafeGetTensorImpl());
    return static_cast<torch::optim::AdamWParamState&>(*state).exp_avg();
  }

  Accelerator accelerator;
  torch::nn::Linear net{nullptr};
  std::optional<Prepared<torch::nn::Linear>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

std::shared_ptr<const checkpoint::MappedFile> mapped(const fs::path& path) {
  return checkpoint::MappedFile::map(checkpoint::InputFile(path), path);
}

// Of the error that `work` throws; kInternal: of none.
ErrorCode code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class MappedLoad : public ::testing::TestWithParam<bool> {
 protected:
  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(MappedLoad, PutsStatesWhereTheyAreAndGoesOnWithTheNumbersThatWereSaved) {
  test::run_ranks(2, [&] {
    Training run(GetParam());
    run.train(2);
    run.accelerator.save_state(folder_ / "two");
    run.train(1);
    run.accelerator.save_state(folder_ / "three");
    const void* const place = run.average().data_ptr();
    run.accelerator.load_state(folder_ / "two");
    EXPECT_EQ(run.average().data_ptr(), place);
    run.train(1);
    run.accelerator.save_state(folder_ / "again");
  });
  if (test::rank_of_this_process() >= 0) return;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "optimizer.json"})
    EXPECT_TRUE(contents(folder_ / "again" / name) == contents(folder_ / "three" / name)) << name;
}

TEST_P(MappedLoad, LeavesNothingOfTheFilesInObjects) {
  test::run_ranks(2, [&] {
    {
      Training run(GetParam());
      run.train(2);
      run.accelerator.save_state(folder_ / "two");
      run.train(1);
      run.accelerator.save_state(folder_ / "three");
    }
    Training run(GetParam());  // its optimizer has no states yet
    run.accelerator.load_state(folder_ / "two");
    EXPECT_FALSE(checkpoint::is_mapped(run.average()));
    run.accelerator.wait_for_everyone();
    if (run.accelerator.is_main_process()) {
      for (const auto& file : fs::directory_iterator(folder_ / "two"))
        fs::resize_file(file.path(), 0);
    }
    run.accelerator.wait_for_everyone();
    run.train(1);
    run.accelerator.save_state(folder_ / "again");
  });
  if (test::rank_of_this_process() >= 0) return;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "optimizer.json"})
    EXPECT_TRUE(contents(folder_ / "again" / name) == contents(folder_ / "three" / name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Models, MappedLoad, ::testing::Bool(), [](const auto& is_sharded) {
  return is_sharded.param ? std::string("Sharded") : std::string("Copies");
});

TEST(MappedTensor, HasTheValuesOfTheFileAndIsCopiedIntoWhatFits) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "weights.safetensors";
  safetensors::save_file({{"weight", at::arange(12, at::kFloat).view({3, 4})}}, path);
  const auto file = mapped(path);
  ASSERT_NE(file, nullptr);
  file->read_ahead(0, file->bytes().size());
  const safetensors::TensorInfo info{
      .name = "weight", .dtype = safetensors::Dtype::kF32, .shape = {3, 4}, .begin = 0, .end = 48};
  const at::Tensor mapped = checkpoint::mapped_tensor(file, info, file->bytes().size() - 48);
  EXPECT_TRUE(checkpoint::is_mapped(mapped));
  EXPECT_TRUE(checkpoint::is_mapped(mapped.view({-1}).narrow(0, 4, 4)));
  EXPECT_TRUE(test::same_tensor(mapped, at::arange(12, at::kFloat).view({3, 4})));

  const at::Tensor present = at::ones({3, 4});
  EXPECT_TRUE(checkpoint::placed_into(present, mapped).is_same(present));
  EXPECT_TRUE(test::same_tensor(present, mapped));
  EXPECT_FALSE(checkpoint::is_mapped(checkpoint::placed_into(at::ones({4}), mapped)));
  EXPECT_FALSE(checkpoint::is_mapped(checkpoint::owned(mapped)));
}

TEST(MappedTensor, IsACopyWhereItsTypeMayNotLie) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "bytes";
  std::ofstream(path) << "x" << std::string("\0\0\x80\x3f", 4);
  const safetensors::TensorInfo info{
      .name = "one", .dtype = safetensors::Dtype::kF32, .shape = {1}, .begin = 0, .end = 4};
  const at::Tensor one = checkpoint::mapped_tensor(mapped(path), info, 1);
  EXPECT_FALSE(checkpoint::is_mapped(one));
  EXPECT_EQ(one.item<float>(), 1);
  EXPECT_EQ(code_of([&] { (void)checkpoint::mapped_tensor(mapped(path), info, 2); }),
            ErrorCode::kCheckpointIncomplete);
}

TEST(MappedTensor, IsNotTakenFromAFileThatSomebodyWritesTo) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "weights.safetensors";
  safetensors::save_file({{"weight", at::arange(12, at::kFloat)}}, path);
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
  const auto file = mapped(path);
  const safetensors::TensorInfo info{
      .name = "weight", .dtype = safetensors::Dtype::kF32, .shape = {12}, .begin = 0, .end = 48};
  const at::Tensor weight = checkpoint::mapped_tensor(file, info, file->bytes().size() - 48);
  checkpoint::copy_loaded(at::ones({12}), weight);

  std::fstream(path, std::ios::in | std::ios::out) << "other";
  EXPECT_EQ(code_of([&] { checkpoint::copy_loaded(at::ones({12}), weight); }),
            ErrorCode::kCheckpointIncomplete);
  EXPECT_EQ(code_of([&] { (void)checkpoint::owned(weight); }), ErrorCode::kCheckpointIncomplete);
}

TEST(MappedFile, SaysThatItEndsBeforeWhatIsWanted) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "short";
  std::ofstream(path) << "twelve bytes";
  const auto file = mapped(path);
  ASSERT_NE(file, nullptr);
  EXPECT_NO_THROW(file->read_ahead(4, 8));
  EXPECT_THROW(file->read_ahead(4, 9), Error);
}

TEST(MappedFile, ThatIsCutShortReadsAsZerosAndIsSaidToBeSo) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "cut";
  std::ofstream(path) << std::string(kPages * page_bytes(), 'x');
  const auto file = mapped(path);
  ASSERT_NE(file, nullptr);
  file->read_ahead(0, file->bytes().size());
  EXPECT_NO_THROW(file->verify_unchanged());

  fs::resize_file(path, page_bytes());
  std::vector<std::jthread> readers;  // that fault in the same pages at the same time
  std::atomic<std::size_t> zeros = 0;
  for (int reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&] {
      for (const std::byte byte : file->bytes().subspan(page_bytes()))
        zeros += byte == std::byte{0} ? 1 : 0;
    });
  }
  readers.clear();

  EXPECT_EQ(zeros, 4 * (kPages - 1) * page_bytes());
  EXPECT_EQ(file->bytes()[0], std::byte{'x'});
  EXPECT_EQ(code_of([&] { file->verify_unchanged(); }), ErrorCode::kCheckpointIncomplete);
  EXPECT_EQ(code_of([&] { file->read_ahead(0, kPages * page_bytes()); }),
            ErrorCode::kCheckpointIncomplete);
}

TEST(MappedFile, IsNotMappedInAThreadThatBlocksTheSignalOfLackingPages) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  std::ofstream(path) << "bytes";
  ASSERT_NE(mapped(path), nullptr);
  sigset_t fault;
  sigset_t before;
  ::sigemptyset(&fault);
  ::sigaddset(&fault, SIGBUS);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &fault, &before), 0);

  EXPECT_EQ(mapped(path), nullptr);

  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(MappedFile, IsNotMappedWhereTheProgramHandlesLackingPagesItself) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  std::ofstream(path) << "bytes";
  ASSERT_NE(mapped(path), nullptr);
  struct sigaction before = {};
  struct sigaction own = {};
  own.sa_handler = [](int) { ::_exit(9); };
  ASSERT_EQ(::sigaction(SIGBUS, &own, &before), 0);

  EXPECT_EQ(mapped(path), nullptr);
  ASSERT_EQ(::sigaction(SIGBUS, &before, nullptr), 0);
  EXPECT_NE(mapped(path), nullptr);
}

TEST(MappedFileDeathTest, PagesThatLackElsewhereEndTheProcessAsBefore) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "other";
  std::ofstream(path) << std::string(2 * page_bytes(), 'x');
  const auto watched = mapped(path);
  ASSERT_NE(watched, nullptr);
  const checkpoint::InputFile file(path);
  const auto* const own = static_cast<const volatile char*>(
      ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0));
  fs::resize_file(path, 1);
  EXPECT_EXIT((void)own[page_bytes()], ::testing::KilledBySignal(SIGBUS), "");
}

// A checkpoint whose model's file changes once it was compared, before the ranks copy from it.
class ChangedLoad : public ::testing::TestWithParam<bool> {
 protected:
  // The message of the load, and that nothing of the model was changed.
  void expect_refused(const std::function<void(const fs::path&)>& change,
                      const std::string& message) {
    const test::ScratchFolder scratch;
    const fs::path folder = scratch.path() / "saved";
    test::run_ranks(2, [&] {
      Training run(GetParam());
      run.train(1);
      run.accelerator.save_state(folder);
      run.train(1);
      run.accelerator.save_state(scratch.path() / "before");
      if (run.accelerator.is_main_process()) {
        const fs::path file = folder / "model.safetensors";
        fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(1));
      }
      run.accelerator.wait_for_everyone();
      auto objects = run.accelerator.checkpoint_objects();
      // Runs when all was compared.
      objects.before_load.emplace_back([&](const fs::path& saved) {
        if (run.accelerator.is_main_process()) change(saved / "model.safetensors");
      });
      try {
        (void)load_checkpoint(folder, objects);
        ADD_FAILURE() << "it was loaded";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
        EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
      }
      run.accelerator.save_state(scratch.path() / "after");
    });
    if (test::rank_of_this_process() >= 0) return;
    for (const char* name : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(contents(scratch.path() / "after" / name) ==
                  contents(scratch.path() / "before" / name))
          << name;
  }
};

TEST_P(ChangedLoad, IsRefusedWhenTheFileIsCutShortMeanwhile) {
  expect_refused([](const fs::path& file) { fs::resize_file(file, 5000); },
                 "model.safetensors was changed from ");
}

TEST_P(ChangedLoad, IsRefusedWhenTheFileIsWrittenToMeanwhile) {
  expect_refused(
      [](const fs::path& file) {
        std::fstream(file, std::ios::in | std::ios::out).seekp(5000) << "other values";
      },
      "model.safetensors was written to while it was loaded");
}

INSTANTIATE_TEST_SUITE_P(Models, ChangedLoad, ::testing::Bool(), [](const auto& is_sharded) {
  return is_sharded.param ? std::string("Sharded") : std::string("Copies");
});

}  // namespace
}  // namespace accel::mapped_load_test

// A model is trained whose optimizer state is four times the memory that is left for it, or whose parameters, gradients and states
// together are four times that, and where the disk fills up meanwhile.
//
// The limit is RLIMIT_DATA, set when the parameters and their gradients are there: it counts private memory that may be written
// to, which is what cannot leave without swap, and any process may set it. RLIMIT_AS would count the mapping of the state file,
// which takes no memory. So that this is true is looked at too: all that is resident, pages of files too, grows by no more.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <accel/checkpoint.h>
#include <accel/error.h>

#include "runtime/checkpoint/xxh3.h"
#include "tests/support/error_of.h"
#include "tests/support/offloaded_training.h"
#include "tests/support/peak_memory.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::limited_memory_test {
namespace {

namespace fs = std::filesystem;
using test::OffloadedTraining;
using test::zero_options;
using ::testing::HasSubstr;

// Parameters of 12 x 16 MiB, and so states of 384 MiB.
constexpr test::OffloadedModel kLarge{.width = 2048, .depth = 12};
constexpr rlim_t kLimit = rlim_t{96} << 20;

rlim_t private_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  rlim_t kib = 0;
  while (status >> word)
    if (word == "VmData:" && status >> kib) return kib * 1024;
  return 0;
}

// From now on no more than that beside what there was.
void limit_private_memory(rlim_t more, rlim_t present = private_bytes()) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &limit), 0);
  limit.rlim_cur = more == RLIM_INFINITY ? limit.rlim_max : present + more;
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
}

// Hashes of losses and parameters, in hexadecimal numbers.
std::string digest_of(const OffloadedTraining& training) {
  std::string text;
  for (const at::Tensor& tensor : training.outcome()) {
    const at::Tensor values = tensor.contiguous();
    text += std::to_string(
                checkpoint::xxh3_functions().hash(values.const_data_ptr(), values.nbytes())) +
            " ";
  }
  return text;
}

// By rank.
fs::path file_of(const fs::path& path, const OffloadedTraining& training) {
  return path.string() + std::to_string(training.accelerator.process_index());
}

void write_text(const fs::path& path, const OffloadedTraining& training) {
  std::ofstream(file_of(path, training)) << digest_of(training);
}

std::string text_of(const fs::path& path, const OffloadedTraining& training) {
  std::ifstream file(file_of(path, training));
  std::string line;
  std::getline(file, line);
  return line;
}

class LimitedMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::PeakMemory::is_the_programs_own()) GTEST_SKIP() << "a sanitizer needs more memory";
  }
  const test::ScratchFolder scratch_;
  const fs::path expected_ = scratch_.path() / "expected";
  const fs::path state_ = scratch_.path() / "state";
};

TEST_F(LimitedMemory, IsEnoughForAQuarterOfTheStateThatLiesOnDisk) {
  test::run_ranks(1, [&] {
    OffloadedTraining memory(zero_options(2, std::nullopt), kLarge);
    memory.train(3);
    write_text(expected_, memory);
  });
  test::run_ranks(1, [&] {
    OffloadedTraining disk(zero_options(2, scratch_.path()), kLarge);
    std::optional<test::PeakMemory> peak;
    disk.train(3, [&] {
      if (peak) return;
      limit_private_memory(kLimit);
      peak.emplace();
    });
    EXPECT_LE(peak->growth_bytes(), static_cast<std::int64_t>(kLimit)) << peak->report();
    limit_private_memory(RLIM_INFINITY);
    EXPECT_EQ(digest_of(disk), text_of(expected_, disk));
  });
  const std::vector<test::RankExit> exits =
      test::run_ranks(1,
                      [&] {
                        OffloadedTraining memory(zero_options(2, std::nullopt), kLarge);
                        memory.train(1, [] { limit_private_memory(kLimit); });
                      },
                      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_NE(exits[0].status, 0);
  EXPECT_THAT(exits[0].output, HasSubstr("can't allocate memory"));
}

// The limit counts from before the model is made. Of large blocks that are freed malloc() is to keep nothing, for the limit counts
// what it keeps.
TEST_F(LimitedMemory, IsEnoughForAQuarterOfParametersGradientsAndStatesThatLieOnDisk) {
  constexpr test::OffloadedModel kWhole{.width = 2048,
                                        .depth = 6};  // 96 MiB, and so 384 MiB in all
  const auto train = [](OffloadedTraining& training) {
    training.train(2);
    const at::NoGradGuard no_grad;
    training.results.push_back((*training.model)(at::ones({4, kWhole.width})));
  };
  test::run_ranks(1, [&] {
    OffloadedTraining memory(zero_options(3, std::nullopt), kWhole);
    train(memory);
    write_text(expected_, memory);
  });
  const auto on_disk = [&] {
    const rlim_t before = private_bytes();
    const fs::path& folder = scratch_.path();
    OffloadedTraining disk(test::with_parameters_in(folder, zero_options(3, folder)), kWhole);
    limit_private_memory(kLimit, before);
    const test::PeakMemory peak;
    train(disk);
    limit_private_memory(RLIM_INFINITY);
    EXPECT_LE(peak.growth_bytes(), static_cast<std::int64_t>(2 * kLimit)) << peak.report();
    EXPECT_EQ(digest_of(disk), text_of(expected_, disk));
  };
  test::run_ranks(1, on_disk, {.env = {{"MALLOC_MMAP_THRESHOLD_", "1048576"}}});
}

// On two ranks, which have half of the state each, its parts.
TEST_F(LimitedMemory, IsEnoughToLoadAStateOntoTheDisk) {
  for (const int num_ranks : {1, 2}) {
    test::run_ranks(num_ranks, [&] {
      OffloadedTraining memory(zero_options(2, std::nullopt), kLarge);
      memory.train(1);
      memory.accelerator.save_state(state_);
      memory.train(1);
      write_text(expected_, memory);
    });
    test::run_ranks(num_ranks, [&] {
      OffloadedTraining disk(zero_options(2, scratch_.path()), kLarge);
      limit_private_memory(kLimit);  // pages of the checkpoint's files do not count, and can leave
      disk.accelerator.load_state(state_);
      limit_private_memory(RLIM_INFINITY);
      disk.results.push_back(at::zeros({}));  // stands for the first loss
      disk.train(1);
      const std::string digest = digest_of(disk);
      const std::string expected = text_of(expected_, disk);
      EXPECT_EQ(digest.substr(digest.find(' ')), expected.substr(expected.find(' ')));
    });
  }
}

// A disk of its own, of so many bytes, for this process alone. False: it may not mount.
bool mount_disk(const fs::path& folder, std::size_t bytes) {
  fs::create_directories(folder);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) ==
             0;
}

void fill_disk(const fs::path& folder) {
  std::ofstream file(folder / "filler", std::ios::binary);
  const std::string block(4096, 'x');
  while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

TEST(FullDisk, IsReportedAndLeavesTheLastCheckpointWhole) {
  const test::ScratchFolder scratch;
  test::run_ranks(1, [&] {
    const fs::path disk = scratch.path() / "disk";
    if (!mount_disk(disk, 16 << 20)) {
      std::ofstream(scratch.path() / "skipped") << "";
      return;
    }
    OffloadedTraining training(zero_options(2, disk));
    const at::Tensor last = training.net->parameters().back();  // its state is made later
    training.train(2, [&] { last.mutable_grad().reset(); });
    training.accelerator.save_state(disk / "state");
    const std::vector<at::Tensor> saved = training.outcome();
    fill_disk(disk);

    training.train(1, [&] { last.mutable_grad().reset(); });  // its room is reserved
    const std::vector<at::Tensor> before = training.outcome();
    const Error in_step = test::error_of([&] { training.train(1); });
    EXPECT_EQ(in_step.code(), ErrorCode::kDiskFull);
    EXPECT_THAT(in_step.message(), HasSubstr("the optimizer's state"));
    test::expect_same_tensors(training.outcome(), before);
    const Error in_save = test::error_of([&] { training.accelerator.save_state(disk / "next"); });
    EXPECT_EQ(in_save.code(), ErrorCode::kDiskFull);

    training.results.resize(2);
    training.accelerator.load_state(disk / "state");
    test::expect_same_tensors(training.outcome(), saved);
  });
  if (fs::exists(scratch.path() / "skipped")) GTEST_SKIP() << "mounting a disk needs root";
}

TEST(FullDisk, ForParametersIsRefusedByPrepareAndHarmsNobodyLater) {
  const test::ScratchFolder scratch;
  test::run_ranks(1, [&] {
    const fs::path disk = scratch.path() / "disk";
    if (!mount_disk(disk, 8 << 20)) {
      std::ofstream(scratch.path() / "skipped") << "";
      return;
    }
    const Error error = test::error_of([&] {
      const OffloadedTraining training(
          test::with_parameters_in(disk, zero_options(3, std::nullopt)),
          {.width = 1000, .depth = 3});
    });
    EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
    EXPECT_THAT(error.message(), HasSubstr("parameters"));
    EXPECT_THAT(error.remedy(), HasSubstr("offload_param_nvme_path"));

    OffloadedTraining memory(zero_options(3, std::nullopt));
    memory.train(4);
    OffloadedTraining training(test::with_parameters_in(disk, zero_options(3, disk)));
    training.train(2);
    training.accelerator.save_state(disk / "state");
    fill_disk(disk);
    training.train(2);
    test::expect_same_tensors(training.outcome(), memory.outcome());
    const Error in_save = test::error_of([&] { training.accelerator.save_state(disk / "next"); });
    EXPECT_EQ(in_save.code(), ErrorCode::kDiskFull);
    training.accelerator.load_state(disk / "state");
    training.results.resize(2);
    training.train(2);
    test::expect_same_tensors(training.outcome(), memory.outcome());
  });
  if (fs::exists(scratch.path() / "skipped")) GTEST_SKIP() << "mounting a disk needs root";
}

}  // namespace
}  // namespace accel::limited_memory_test

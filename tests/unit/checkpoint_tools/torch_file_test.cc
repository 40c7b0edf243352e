// What files of torch.save() say of their tensors, made opcode by opcode; Python's own are in tests/peer/accelerate_checkpoints.py.

#include "checkpoint_tools/formats/torch_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "checkpoint_tools/formats/pickle_writer.h"
#include "runtime/unique_fd.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/checkpoint_tools/saved_archive.h"

namespace accel::launcher::torch_file_test {
namespace {

using test::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of `pickle` with one storage of 24 bytes, "0".
std::string archive_of(const std::string& pickle) {
  return test::zip_of({{"a/data.pkl", pickle},
                       {"a/byteorder", "little"},
                       {"a/data/0", std::string(24, '\1')},
                       {"a/version", "3\n"}});
}

class TorchFiles : public ::testing::Test {
 protected:
  Result<TorchFile> open(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    return TorchFile::open({.fd = fd_.get(), .path = path_, .begin = 0, .size = bytes.size()});
  }

  ScratchFolder folder_;
  std::string path_ = folder_.file("weights.bin");
  UniqueFd fd_;
};

TEST_F(TorchFiles, TensorsOfADictHaveTheirShapesAndOneStorage) {
  const auto tensor = [](std::vector<std::uint64_t> shape) {
    return *pickled::tensor("w", {.shape = std::move(shape), .storage = 0});
  };
  const auto file = open(archive_of(pickled::document(
      pickled::dict(pickled::text("w") + tensor({2, 3}) + pickled::text("head") + tensor({6})))));

  ASSERT_TRUE(file) << file.error().what();
  const auto entries = file->pickle().entries(file->pickle().root());
  ASSERT_EQ(entries->size(), 4u);
  ASSERT_TRUE(file->is_tensor((*entries)[1]));
  const auto first = file->tensor((*entries)[1]);
  const auto second = file->tensor((*entries)[3]);
  ASSERT_TRUE(first && second);
  EXPECT_THAT(first->shape, ElementsAre(2, 3));
  EXPECT_THAT(second->shape, ElementsAre(6));
  EXPECT_EQ(first->storage.begin, second->storage.begin);
  EXPECT_FALSE(file->is_tensor((*entries)[0]));
}

TEST_F(TorchFiles, ValuesAreReadAsTheyWereWritten) {
  const auto file = open(archive_of(pickled::document(pickled::list(
      pickled::integer(-3) + pickled::integer(70000) + pickled::integer(-(std::int64_t{1} << 40)) +
      pickled::real(-0.1) + pickled::boolean(true) + pickled::none()))));

  ASSERT_TRUE(file) << file.error().what();
  const Pickle& pickle = file->pickle();
  const auto items = *pickle.sequence(pickle.root());
  EXPECT_EQ(pickle.integer(items[0]), -3);
  EXPECT_EQ(pickle.integer(items[1]), 70000);
  EXPECT_EQ(pickle.integer(items[2]), -(std::int64_t{1} << 40));
  EXPECT_EQ(pickle.real(items[3]), -0.1);
  EXPECT_EQ(pickle.boolean(items[4]), true);
  EXPECT_EQ(pickle.kind(items[5]), PickleKind::kNone);
}

TEST_F(TorchFiles, AttributesOfATensorAreLeftOut) {
  const auto with_attributes = [](const std::string& function, const std::string& arguments) {
    return test::pickle_of(
        test::call_op(test::name_op("torch._tensor", "_rebuild_from_type_v2"),
                      {function,
                       test::name_op("torch", "Tensor"),
                       arguments,
                       test::dict_op({{test::text_op("_has_been_cloned"), "\x88"}})}));
  };
  const std::string function = test::name_op("torch._utils", "_rebuild_tensor_v2");
  const auto arguments = test::tuple_op(test::tensor_arguments(
      {.shape = {2, 3}, .strides = {3, 1}, .storage = std::string(24, '\1')}));
  const auto file = open(archive_of(with_attributes(function, arguments)));
  ASSERT_TRUE(file) << file.error().what();
  ASSERT_TRUE(file->is_tensor(file->pickle().root()));
  const auto tensor = file->tensor(file->pickle().root());
  ASSERT_TRUE(tensor) << tensor.error().what();
  EXPECT_THAT(tensor->shape, ElementsAre(2, 3));

  // Another function than that of a tensor, and no arguments.
  for (const std::string& pickle :
       {with_attributes(test::name_op("collections", "OrderedDict"), arguments),
        with_attributes(function, test::int_op(1))}) {
    const auto damaged = open(archive_of(pickle));
    ASSERT_TRUE(damaged) << damaged.error().what();
    EXPECT_EQ(damaged->tensor(damaged->pickle().root()).error().code(),
              ErrorCode::kCheckpointIncomplete);
  }
}

TEST_F(TorchFiles, ATensorBeyondItsStorageIsRefused) {
  const auto file =
      open(archive_of(pickled::document(*pickled::tensor("w", {.shape = {7}, .storage = 0}))));

  ASSERT_TRUE(file);
  const auto tensor = file->tensor(file->pickle().root());
  ASSERT_FALSE(tensor);
  EXPECT_EQ(tensor.error().code(), ErrorCode::kCheckpointIncomplete);
  EXPECT_THAT(tensor.error().message(), HasSubstr("beyond its storage of 24 bytes"));
}

TEST_F(TorchFiles, AStorageThatIsMissingIsNamedAsDamage) {
  const auto file =
      open(archive_of(pickled::document(*pickled::tensor("w", {.shape = {1}, .storage = 5}))));

  ASSERT_TRUE(file);
  EXPECT_THAT(file->tensor(file->pickle().root()).error().message(),
              HasSubstr("its storage is missing"));
}

TEST_F(TorchFiles, WhatWouldRunSomethingIsNamedAndNotRun) {
  const auto file = open(archive_of(test::pickle_of(
      test::call_op(test::name_op("os", "system"), {test::text_op("touch owned")}))));

  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(file.error().message(), HasSubstr("names os system"));
}

TEST_F(TorchFiles, AFileThatIsCutShortAnywhereIsAnError) {
  const std::string whole =
      archive_of(pickled::document(*pickled::tensor("w", {.shape = {6}, .storage = 0})));
  ASSERT_TRUE(open(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto file = open(whole.substr(0, size));
    ASSERT_FALSE(file) << size;
    EXPECT_EQ(file.error().code(), ErrorCode::kCheckpointIncomplete) << size;
  }
}

}  // namespace
}  // namespace accel::launcher::torch_file_test

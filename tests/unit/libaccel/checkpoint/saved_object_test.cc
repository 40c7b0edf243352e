// Objects in files of torch.save(). What Python makes of them is in tests/peer/accelerate_checkpoints.py.

#include <fstream>
#include <iterator>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/saved_object.h>
#include <accel/state.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::saved_object_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::SameTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

c10::impl::GenericDict any_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class SavedObject : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;
  fs::path file_ = scratch_.path() / "object.pt";
};

TEST_F(SavedObject, ComesBackAsItWas) {
  auto inner = any_dict();
  inner.insert(std::int64_t{7}, at::arange(6).reshape({2, 3}).t());
  auto object = any_dict();
  object.insert("inner", inner);
  object.insert("pair", c10::ivalue::Tuple::create({c10::IValue(), std::string("two")}));
  object.insert("rates", std::vector<double>{0.1, -1e300});

  save(object, file_);
  const auto read = load(file_).toGenericDict();

  EXPECT_THAT(read.at("inner").toGenericDict().at(std::int64_t{7}).toTensor(),
              SameTensor(at::arange(6).reshape({2, 3}).t()));
  EXPECT_TRUE(read.at("pair").toTupleRef().elements()[0].isNone());
  EXPECT_EQ(read.at("pair").toTupleRef().elements()[1].toStringRef(), "two");
  EXPECT_EQ(read.at("rates").toListRef()[1].toDouble(), -1e300);
  EXPECT_EQ(read.begin()->key().toStringRef(), "inner");  // the order stays
}

TEST_F(SavedObject, TensorsOfOneMemoryStayTied) {
  const at::Tensor tensor = at::ones({3});
  auto object = any_dict();
  object.insert("a", tensor);
  object.insert("b", tensor);

  save(object, file_);
  const auto tensors = load_state_dict(file_);

  EXPECT_EQ(tensors.at("a").const_data_ptr(), tensors.at("b").const_data_ptr());
  EXPECT_THAT(tensors.at("b"), SameTensor(tensor));
}

TEST_F(SavedObject, AsSafetensorsIsADictOfTensorsAlone) {
  auto object = any_dict();
  object.insert("w", at::ones({2}));
  save(object, scratch_.path() / "w.safetensors", {.safe_serialization = true});
  object.insert("size", std::int64_t{2});

  const Error error = error_of([&] { save(object, file_, {.safe_serialization = true}); });

  EXPECT_THAT(load_state_dict(scratch_.path() / "w.safetensors").at("w"),
              SameTensor(at::ones({2})));
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("size is of the type Int"));
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(SavedObject, WhatAPickleHasNoPlaceForIsNamed) {
  auto object = any_dict();
  object.insert("where", c10::Device("cpu"));

  const Error error = error_of([&] { save(object, file_); });

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("a value of the type Device, where"));
}

TEST_F(SavedObject, AFailedSaveLeavesTheEarlierFile) {
  save(std::int64_t{5}, file_);
  auto object = any_dict();
  object.insert("ghost", at::ones({2}, at::TensorOptions().device(at::kMeta)));

  EXPECT_EQ(error_of([&] { save(object, file_); }).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(load(file_).toInt(), 5);
}

TEST_F(SavedObject, ThatIsCutShortOrHasOneByteChangedNeverCrashes) {
  auto object = any_dict();
  object.insert("w", at::ones({2, 3}));
  object.insert("list", std::vector<std::int64_t>{1, 2, 3});
  save(object, file_);
  const std::string whole = bytes_of(file_);
  const fs::path damaged = scratch_.path() / "damaged.pt";
  const auto try_to_load = [&](const std::string& bytes) {
    std::ofstream(damaged, std::ios::binary) << bytes;
    try {
      (void)load(damaged);
    } catch (const Error&) {
      return false;
    }
    return true;
  };

  for (std::size_t size = 0; size < whole.size(); size += 7)
    EXPECT_FALSE(try_to_load(whole.substr(0, size))) << size;
  for (std::size_t place = 0; place < whole.size(); place += 3) {
    std::string changed = whole;
    changed[place] = static_cast<char>(changed[place] ^ 0x41);
    (void)try_to_load(changed);
  }
}

TEST_F(SavedObject, OfARegisteredObjectIsADictOfItsState) {
  test::Counter counter;
  counter.value = 12;
  save_custom_state(counter, scratch_.path(), 3);

  const auto dict = load(scratch_.path() / "custom_checkpoint_3.pkl").toGenericDict();
  test::Counter read;
  load_custom_state(read, scratch_.path(), 3);

  EXPECT_EQ(dict.at("value").toInt(), 12);
  EXPECT_EQ(read.value, 12);
}

TEST_F(SavedObject, IsWrittenByRankZeroAlone) {
  test::run_ranks(2, [this] {
    const PartialState state;
    save(std::int64_t{state.process_index()}, file_);
    state.wait_for_everyone();
    EXPECT_EQ(load(file_).toInt(), 0);
    const fs::path own = scratch_.path() / std::to_string(state.process_index());
    save(std::int64_t{1}, own, {.save_on_each_node = true});
    EXPECT_EQ(fs::exists(own), state.is_local_main_process());
  });
}

TEST_F(SavedObject, MergeOfPickledShardsIsOneFile) {
  torch::nn::Linear net(3, 4);
  save_model(*net, scratch_.path() / "shards", {.max_shard_size = "20"});

  const MergedWeights merged = merge_fsdp_weights(
      scratch_.path() / "shards", scratch_.path() / "whole", {.safe_serialization = false});

  EXPECT_EQ(merged.file, scratch_.path() / "whole" / "pytorch_model.bin");
  EXPECT_EQ(merged.tensors, 2u);
  EXPECT_THAT(load_state_dict(merged.file).at("weight"), SameTensor(net->weight));
}

}  // namespace
}  // namespace accel::saved_object_test

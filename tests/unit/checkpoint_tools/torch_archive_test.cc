// What torch.load() would be told of tensors, read with our own machine. PyTorch loads the files in tests/peer/merge_weights.py.

#include "checkpoint_tools/formats/torch_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "checkpoint_tools/formats/pickle.h"
#include "checkpoint_tools/formats/pickle_shape.h"

namespace accel::launcher::torch_archive_test {
namespace {

using safetensors::Dtype;
using safetensors::TensorSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kAllowed[] = {"torch._utils _rebuild_tensor_v2",
                                         "torch._utils _rebuild_tensor_v3",
                                         "torch FloatStorage",
                                         "torch.storage UntypedStorage",
                                         "torch uint16",
                                         "collections OrderedDict"};

// data.pkl of an archive, and its dict.
struct StateDict {
  std::string bytes;
  Pickle pickle;
};
StateDict state_dict_of(const TorchArchive& archive) {
  StateDict dict{.bytes = archive.records.front().second, .pickle = {}};
  auto pickle = read_pickle(dict.bytes, kAllowed);
  EXPECT_TRUE(pickle) << pickle.error().what();
  if (pickle) dict.pickle = *std::move(pickle);
  return dict;
}

std::string storage_of(const StateDict& dict, std::string_view name) {
  const auto call = dict.pickle.field(dict.pickle.root(), name);
  if (!call) return "none";
  const auto id = dict.pickle.persistent_id(dict.pickle.arguments(*call)[0]);
  std::string text;
  for (const PickleNode part : *id)
    text += std::string(dict.pickle.text(part).value_or(dict.pickle.name(part).value_or(""))) + " ";
  return text + std::to_string(*dict.pickle.integer(id->back()));
}

TEST(TorchArchive, TensorsAreCallsWithTheirStorageShapeAndStrides) {
  const std::uint64_t large = std::uint64_t{3} << 31;
  const auto archive = plan_torch_archive(std::vector<TensorSpec>{{"w", Dtype::kF32, {2, 300, 1}},
                                                                  {"big", Dtype::kF32, {large}},
                                                                  {"one", Dtype::kF32, {}},
                                                                  {"none", Dtype::kF32, {4, 0, 3}}},
                                          {});
  ASSERT_TRUE(archive) << archive.error().what();
  const StateDict dict = state_dict_of(*archive);
  const auto sizes = [&](std::string_view name, std::size_t argument) {
    const auto call = dict.pickle.field(dict.pickle.root(), name);
    return *sizes_of(dict.pickle, dict.pickle.arguments(*call)[argument]);
  };
  EXPECT_EQ(storage_of(dict, "w"), "storage torch FloatStorage 0 cpu  600");
  EXPECT_THAT(sizes("w", 2), ElementsAre(2, 300, 1));
  EXPECT_THAT(sizes("w", 3), ElementsAre(300, 1, 1));
  EXPECT_THAT(sizes("big", 2), ElementsAre(large));
  EXPECT_THAT(sizes("one", 2), ElementsAre());
  EXPECT_THAT(sizes("none", 3), ElementsAre(3, 3, 1));
  EXPECT_EQ(archive->places.at("big"), archive->layout.begin_of(3));
  EXPECT_EQ(archive->layout.size_of(3), large * 4);
}

TEST(TorchArchive, ATypeWithoutAStorageOfItsOwnIsBytes) {
  const auto archive = plan_torch_archive(std::vector<TensorSpec>{{"w", Dtype::kU16, {3}}}, {});
  ASSERT_TRUE(archive);
  const StateDict dict = state_dict_of(*archive);
  const auto call = dict.pickle.field(dict.pickle.root(), "w");
  EXPECT_EQ(dict.pickle.made_by(*call), "torch._utils _rebuild_tensor_v3");
  EXPECT_EQ(storage_of(dict, "w"), "storage torch.storage UntypedStorage 0 cpu  6");
  EXPECT_EQ(dict.pickle.name(dict.pickle.arguments(*call)[6]), "torch uint16");
}

TEST(TorchArchive, TiedWeightsShareAStorage) {
  const std::vector<TensorSpec> tensors = {{"a", Dtype::kF32, {2}}, {"b", Dtype::kF32, {2}}};
  const auto archive =
      plan_torch_archive(tensors, {{"format", "pt"}, {"head", "b"}, {"a", "b"}, {"x", "gone"}});
  ASSERT_TRUE(archive);
  const StateDict dict = state_dict_of(*archive);
  EXPECT_EQ(storage_of(dict, "head"), "storage torch FloatStorage 1 cpu  2");
  EXPECT_EQ(storage_of(dict, "a"), "storage torch FloatStorage 0 cpu  2");
  EXPECT_EQ(dict.pickle.entries(dict.pickle.root())->size(), 2 * 3);
}

TEST(TorchArchive, ADtypeThatPyTorchHasNotIsNamed) {
  const auto archive = plan_torch_archive(std::vector<TensorSpec>{{"w", Dtype::kF4, {2}}}, {});
  ASSERT_FALSE(archive);
  EXPECT_EQ(archive.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(archive.error().message(), HasSubstr("w has the dtype F4"));
}

}  // namespace
}  // namespace accel::launcher::torch_archive_test

// Device maps of exported models: by the names and classes that they have in Python, on weights in the .pt2 file itself.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <accel/big_model.h>
#include <accel/exported_model.h>
#include <accel/offload.h>

#include "tests/support/exported_archive.h"
#include "tests/support/scratch_folder.h"

namespace accel::exported_weights_test {
namespace {

at::Tensor tokens() {
  return at::arange(12).view({3, 4});
}

at::Tensor logits_of(ExportedModel& net) {
  const at::NoGradGuard no_grad;
  return net(tokens(), tokens())["logits"];
}

ExportedModel without_weights() {
  const auto scope = init_empty_weights();
  return ExportedModel(test::exported_model("blocks"));
}

at::Tensor expected() {
  ExportedModel resident(test::exported_model("blocks"));
  resident->eval();
  return logits_of(resident);
}

// What becomes of blocks.pt2 as the host has more and more room.
std::vector<DeviceMap> maps_of(const std::vector<std::string>& no_split_module_classes) {
  const ExportedModel net = without_weights();
  const double all = compute_module_sizes(*net).at("");
  std::vector<DeviceMap> maps;
  for (std::int64_t limit = 0; static_cast<double>(limit) < 2 * all; limit += 64)
    maps.push_back(infer_auto_device_map(
        *net,
        {.max_memory = {{{"cpu", limit}}}, .no_split_module_classes = no_split_module_classes}));
  return maps;
}

bool splits_a_block(const DeviceMap& map) {
  return std::ranges::any_of(map,
                             [](const auto& item) { return item.first.starts_with("blocks.0."); });
}

bool has_a_whole_block(const DeviceMap& map) {
  return std::ranges::any_of(
      map, [](const auto& item) { return item.first == "blocks.0" || item.first == "blocks"; });
}

TEST(ExportedWeights, AMapNamesModulesOfPythonAndSplitsNoNamedClass) {
  const auto whole = maps_of({"Block"});
  EXPECT_TRUE(std::ranges::none_of(whole, splits_a_block));
  EXPECT_TRUE(std::ranges::any_of(whole, has_a_whole_block));
  EXPECT_TRUE(std::ranges::any_of(maps_of({}), splits_a_block));
}

// A whole number by a fraction is a float where the fraction is a number of the graph, and a double where it is a tensor.
TEST(ExportedWeights, NumbersOfTheGraphStayNumbersInAModelWithoutWeights) {
  const at::NoGradGuard no_grad;
  const ExportedInputs inputs{{"input_ids", tokens()}};
  ExportedModel resident(test::exported_model("prefix"));
  std::optional<ExportedModel> net;
  {
    const auto scope = init_empty_weights();
    net.emplace(test::exported_model("prefix"));
  }
  load_checkpoint_and_dispatch(**net, test::exported_model("prefix"));
  EXPECT_TRUE(at::equal((*net)(inputs)[0], resident(inputs)[0]));
}

TEST(ExportedWeights, AModelComputesTheSameBitsWhereverTheMapPutsItsWeights) {
  for (const DeviceMap& map : {DeviceMap{{"", "disk"}},
                               DeviceMap{{"", "cpu"}},
                               DeviceMap{{"", "cpu"}, {"blocks.1", "disk"}}}) {
    ExportedModel net = without_weights();
    EXPECT_TRUE(net->named_parameters()["blocks.1.up.weight"].is_meta());

    const auto report = load_checkpoint_and_dispatch(
        *net, test::exported_model("blocks"), {.device_map = map, .strict = true});
    net->eval();

    EXPECT_TRUE(report.missing_keys.empty());
    const bool is_on_disk = map.size() > 1 || map.at("") == Placement("disk");
    EXPECT_EQ(has_offloaded_params(*net), is_on_disk);
    EXPECT_TRUE(at::equal(logits_of(net), expected()));
    const auto named = net->named_parameters();
    EXPECT_TRUE(named["head.weight"].is_same(named["embed.weight"]));
  }
}

TEST(ExportedWeights, BuffersOfAModelWithoutWeightsHaveTheirValues) {
  const ExportedModel net = without_weights();
  const auto buffers = net->named_buffers();
  EXPECT_EQ(buffers["scale"].item<float>(), 2);
  EXPECT_EQ(buffers["calls"].item<std::int64_t>(), 0);
}

TEST(ExportedWeights, AResidentExportedModelGoesToDisk) {
  const test::ScratchFolder folder;
  ExportedModel net(test::exported_model("blocks"));
  net->eval();
  disk_offload(*net, folder.file("weights"));
  EXPECT_TRUE(has_offloaded_params(*net));
  EXPECT_TRUE(at::equal(logits_of(net), expected()));
}

}  // namespace
}  // namespace accel::exported_weights_test

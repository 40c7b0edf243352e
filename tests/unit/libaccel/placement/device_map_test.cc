// Plans for models that are small enough to check by hand. Random ones, beside Accelerate: tests/peer/device_maps.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/big_model.h>
#include <accel/device_map.h>

#include "tests/support/error_of.h"

namespace accel::device_map_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// 64, 72 and 100 bytes.
struct ThreeLayers : torch::nn::Module {
  ThreeLayers() {
    linear1 = register_module("linear1", torch::nn::Linear(3, 4));
    batchnorm = register_module("batchnorm", torch::nn::BatchNorm1d(4));
    linear2 = register_module("linear2", torch::nn::Linear(4, 5));
  }
  torch::Tensor forward(const torch::Tensor& input) { return linear2(batchnorm(linear1(input))); }
  torch::nn::Linear linear1 = nullptr;
  torch::nn::BatchNorm1d batchnorm = nullptr;
  torch::nn::Linear linear2 = nullptr;
};

TEST(DeviceMap, SizesOfModulesAreThoseOfTheirWeights) {
  const ThreeLayers model;

  auto sizes = compute_module_sizes(model);

  EXPECT_EQ(sizes[""], 236);
  EXPECT_EQ(sizes["linear1"], 64);
  EXPECT_EQ(sizes["linear1.weight"], 48);
  EXPECT_EQ(sizes["batchnorm"], 72);  // four vectors of floats, and a count of 8 bytes
  sizes = compute_module_sizes(model, {.dtype = at::kHalf});
  EXPECT_EQ(sizes["batchnorm"], 40);  // the count keeps its type
  EXPECT_EQ(compute_module_sizes(model, {.dtype = CustomDtype::kInt4})["linear2"], 12.5);
  EXPECT_EQ(compute_module_sizes(model, {.buffers_only = true})[""], 40);
}

TEST(DeviceMap, PlacesAreFilledInOrder) {
  const ThreeLayers model;

  EXPECT_THAT(infer_auto_device_map(model, {.max_memory = {{{0, 200}, {1, 200}}}}),
              ElementsAre(Pair("batchnorm", Placement(1)),
                          Pair("linear1", Placement(0)),
                          Pair("linear2", Placement(1))));
  // The rest goes to disk, and the host keeps room for the largest layer.
  EXPECT_THAT(infer_auto_device_map(model, {.max_memory = {{{"cpu", 200}}}}),
              ElementsAre(Pair("batchnorm", Placement("disk")),
                          Pair("linear1", Placement("cpu")),
                          Pair("linear2", Placement("disk"))));
  EXPECT_THAT(infer_auto_device_map(model, {.max_memory = {{{"cpu", "1GB"}}}}),
              ElementsAre(Pair("", Placement("cpu"))));
}

TEST(DeviceMap, AModelWithoutMemoryIsPlannedAsOneWith) {
  std::shared_ptr<ThreeLayers> empty;
  {
    const auto scope = init_empty_weights({.include_buffers = true});
    empty = std::make_shared<ThreeLayers>();
  }
  const DeviceMapOptions options{.max_memory = {{{"cpu", 240}}}};

  EXPECT_EQ(infer_auto_device_map(*empty, options), infer_auto_device_map(ThreeLayers(), options));
}

TEST(DeviceMap, ClassesThatAreNotSplitStayWhole) {
  torch::nn::Sequential block(ThreeLayers{}, ThreeLayers{}, ThreeLayers{});

  const auto map = infer_auto_device_map(
      *block,
      {.max_memory = {{{0, 480}, {"cpu", 1000}}}, .no_split_module_classes = {"ThreeLayers"}});

  EXPECT_THAT(
      map,
      ElementsAre(
          Pair("0", Placement(0)), Pair("1", Placement("cpu")), Pair("2", Placement("cpu"))));
}

TEST(DeviceMap, AModuleWithoutAPlaceIsNamed) {
  const ThreeLayers model;

  const Error error = test::error_of([&] { check_device_map(model, {{"linear1", 0}}); });

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(),
              HasSubstr("does not give any device for the following parameters: batchnorm.weight, "
                        "batchnorm.bias"));
  check_device_map(model, {{"", "cpu"}});
}

TEST(DeviceMap, TiedParametersInSeveralPlacesAreAWarning) {
  const std::vector<std::vector<std::string>> tied = {{"a.weight", "b.weight"}, {"c", "d.e.f"}};
  ::testing::internal::CaptureStderr();
  check_tied_parameters_on_same_device(tied,
                                       {{"a", 0}, {"b", "disk"}, {"c", "cpu"}, {"d.e", "cpu"}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "accel: warning: Tied parameters are on different devices: {'a.weight': 0, 'b.weight': "
            "'disk'}. Please modify your custom device map or set `device_map='auto'`.\n");

  const Error error = test::error_of([&] {
    check_tied_parameters_on_same_device(tied, {{"a", 0}, {"b", 0}});
  });
  EXPECT_EQ(error.message(), "The `device_map` does not contain the module c.");
}

TEST(DeviceMap, ModulesInOnePlaceAreNamedTogether) {
  const DeviceMap map = {{"a.b.c", 0}, {"a.b.d", 0}, {"a.e", 1}, {"f", 1}};

  EXPECT_THAT(
      clean_device_map(map),
      ElementsAre(Pair("a.b", Placement(0)), Pair("a.e", Placement(1)), Pair("f", Placement(1))));
}

TEST(DeviceMap, SizesAreReadAsTheyAreWritten) {
  EXPECT_EQ(convert_file_size_to_int("5GB"), 5'000'000'000);
  EXPECT_EQ(convert_file_size_to_int("0.5GiB"), 536'870'912);
  EXPECT_EQ(convert_file_size_to_int("8Mb"), 1'000'000);
  EXPECT_EQ(convert_file_size_to_int(7), 7);
  EXPECT_EQ(convert_file_size_to_int("0GB"), 0);
  for (const MemorySize& size : {MemorySize("5XB"),
                                 MemorySize("-1GB"),
                                 MemorySize("GB"),
                                 MemorySize(-1),
                                 MemorySize("1e30GB")}) {
    EXPECT_EQ(test::error_of([&] { (void)convert_file_size_to_int(size); }).code(),
              ErrorCode::kInvalidArgument);
  }
}

TEST(DeviceMap, PlacesAreSortedAndOthersRefused) {
  EXPECT_THAT(get_max_memory(MaxMemory{{"disk", 1}, {"cpu", 2}, {1, 3}, {0, 4}}),
              ElementsAre(Pair(Placement(0), 4),
                          Pair(Placement(1), 3),
                          Pair(Placement("cpu"), 2),
                          Pair(Placement("disk"), 1)));
  EXPECT_THAT(test::error_of([] {
                (void)get_max_memory(MaxMemory{{"tpu", 1}});
              }).message(),
              HasSubstr("Device tpu is not recognized"));
  const PlaceBytes here = get_max_memory();
  ASSERT_EQ(here.size(), 1U);
  EXPECT_GT(here[0].second, 0);
}

}  // namespace
}  // namespace accel::device_map_test

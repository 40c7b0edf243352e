// Walking through nested data, and what is done to batches of it.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/batch.h>
#include <accel/detail/concatenate.h>
#include <accel/detail/object_codec.h>
#include <accel/error.h>
#include <accel/nested.h>

#include "tests/support/error_of.h"

namespace accel::nested_test {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

struct Batch {
  at::Tensor images;
  std::vector<std::string> names;
  static constexpr auto fields() { return std::make_tuple(&Batch::images, &Batch::names); }
};

struct Example {  // as torch::data::Example
  at::Tensor data;
  at::Tensor target;
};

enum class Color { kRed, kBlue };

at::Tensor number(double value) {
  return at::full({1}, value, at::kFloat);
}
double value_of(const at::Tensor& tensor) {
  return tensor.item<float>();
}
at::Tensor doubled(const at::Tensor& tensor) {
  return tensor * 2;
}

static_assert(TensorNested<at::Tensor>);
static_assert(TensorNested<std::vector<std::map<std::string, at::Tensor>>>);
static_assert(TensorNested<std::tuple<int, std::optional<at::Tensor>>>);
static_assert(TensorNested<std::variant<int, at::Tensor>>);
static_assert(TensorNested<Batch> && TensorNested<Example>);
static_assert(!TensorNested<int> && !TensorNested<std::vector<std::string>> &&
              !TensorNested<std::vector<bool>>);

// What the forward of a prepared model may return: all tensors can be found in it.
struct Opaque {
  at::Tensor hidden;
};
struct Listed {
  at::Tensor logits;
  std::optional<std::vector<at::Tensor>> states;
  static constexpr auto fields() { return std::make_tuple(&Listed::logits, &Listed::states); }
};
struct ListsAnOpaqueOne {
  Opaque inner;
  static constexpr auto fields() { return std::make_tuple(&ListsAnOpaqueOne::inner); }
};
struct OfNumbers {
  double loss;
  static constexpr auto fields() { return std::make_tuple(); }
};
static_assert(Nested<std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>>);  // an LSTM's
static_assert(Nested<std::map<std::string, std::variant<at::Tensor, double, std::string>>>);
static_assert(Nested<Example> && Nested<Listed> && Nested<OfNumbers>);
static_assert(!Nested<Opaque> && !Nested<ListsAnOpaqueOne>);
static_assert(!Nested<std::vector<Opaque>> && !Nested<std::pair<at::Tensor, Opaque>>);
static_assert(!Nested<std::optional<Opaque>> && !Nested<std::map<int, Opaque>>);

TEST(Nested, ReachesTheTensorsOfEveryContainer) {
  using Data = std::tuple<std::vector<at::Tensor>,
                          std::map<std::string, at::Tensor>,
                          std::pair<int, at::Tensor>,
                          std::array<at::Tensor, 2>,
                          std::optional<at::Tensor>,
                          std::variant<std::string, at::Tensor>,
                          Batch,
                          Example>;
  const Data data{{number(1)},
                  {{"a", number(2)}},
                  {9, number(3)},
                  {number(4), number(5)},
                  number(6),
                  number(7),
                  {number(8), {"x"}},
                  {number(9), number(10)}};

  const Data result = recursively_apply(data, doubled);

  std::vector<double> values;
  for_each_leaf<at::Tensor>(result,
                            [&](const at::Tensor& tensor) { values.push_back(value_of(tensor)); });
  EXPECT_THAT(values, ElementsAre(2, 4, 6, 8, 10, 12, 14, 16, 18, 20));
  EXPECT_EQ(std::get<2>(result).first, 9);
  EXPECT_THAT(std::get<Batch>(result).names, ElementsAre("x"));
}

TEST(Nested, OtherLeavesPassThrough) {
  const std::variant<std::string, at::Tensor> text = "unchanged";

  EXPECT_EQ(recursively_apply(7, doubled), 7);
  EXPECT_EQ(std::get<std::string>(recursively_apply(text, doubled)), "unchanged");
  EXPECT_FALSE(recursively_apply(std::optional<at::Tensor>(), doubled).has_value());
  EXPECT_FALSE(recursively_apply(at::Tensor(), doubled).defined());
}

TEST(Nested, UnorderedMapsAreVisitedInTheOrderOfTheirKeys) {
  std::unordered_map<std::string, at::Tensor> data;
  for (int i = 9; i >= 0; --i) data["key " + std::to_string(i)] = number(i);
  std::vector<double> visited;
  std::vector<double> applied;

  for_each_leaf<at::Tensor>(data,
                            [&](const at::Tensor& tensor) { visited.push_back(value_of(tensor)); });
  recursively_apply(data, [&](const at::Tensor& tensor) {
    applied.push_back(value_of(tensor));
    return tensor;
  });

  EXPECT_THAT(visited, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(applied, visited);
}

TEST(Batch, StructureGoesBackToTensors) {
  const std::map<std::string, std::vector<at::Tensor>> data = {
      {"a", {at::ones({2, 3}), at::ones({4}, at::kLong)}}};

  const auto structure = get_data_structure(data);
  const auto tensors = initialize_tensors(structure);

  EXPECT_EQ(structure.at("a")[0], (TensorInformation{{2, 3}, at::kFloat}));
  EXPECT_EQ(tensors.at("a")[1].sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(tensors.at("a")[1].scalar_type(), at::kLong);
}

TEST(Batch, SizeIsTheRowsOfTheFirstTensor) {
  EXPECT_EQ(find_batch_size(std::make_pair(std::string("x"), at::ones({5, 2}))), 5);
  EXPECT_EQ(ignorant_find_batch_size(std::vector<at::Tensor>{}), std::nullopt);
  EXPECT_EQ(error_of([] { (void)find_batch_size(3); }).code(), ErrorCode::kInvalidArgument);
}

TEST(Batch, SlicesEveryTensor) {
  const Batch batch{at::arange(10), {"whole"}};

  const Batch part = slice_tensors(batch, 2, 5);
  const Batch rest = slice_tensors(batch, 8, 100);

  EXPECT_TRUE(at::equal(part.images, at::arange(2, 5)));
  EXPECT_EQ(rest.images.size(0), 2);
  EXPECT_THAT(part.names, ElementsAre("whole"));
}

TEST(Batch, SkippedKeysStayOnTheirDevice) {
  const std::vector<std::map<std::string, at::Tensor>> data = {
      {{"moved", at::ones({1})}, {"kept", at::ones({1})}}};

  const auto result = send_to_device(data, at::Device(at::kMeta), {.skip_keys = {"kept"}});

  EXPECT_TRUE(result[0].at("moved").is_meta());
  EXPECT_TRUE(result[0].at("kept").is_cpu());
  EXPECT_EQ(find_device(std::vector<at::Tensor>{result[0].at("moved")}), at::Device(at::kMeta));
}

TEST(Batch, OnlyHalfPrecisionBecomesFp32) {
  const std::vector<at::Tensor> data = {at::ones({1}, at::kBFloat16),
                                        at::ones({1}, at::kHalf),
                                        at::ones({1}, at::kDouble),
                                        at::ones({1}, at::kLong)};

  const auto result = convert_to_fp32(data);

  EXPECT_EQ(result[0].scalar_type(), at::kFloat);
  EXPECT_EQ(result[1].scalar_type(), at::kFloat);
  EXPECT_EQ(result[2].scalar_type(), at::kDouble);
  EXPECT_EQ(result[3].scalar_type(), at::kLong);
}

TEST(ConvertOutputsToFp32, WrapsAForward) {
  auto forward =
      convert_outputs_to_fp32([](const at::Tensor& x, double factor) { return x * factor; });
  const at::Tensor result = forward(at::ones({2}, at::kBFloat16), 2.0);
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  EXPECT_EQ(result[1].item<float>(), 2.0F);
}

TEST(Concatenate, JoinsTensorsAndListsMemberByMember) {
  const std::vector<Batch> batches = {{at::arange(2), {"a", "b"}}, {at::arange(3), {"c"}}};

  const Batch joined = concatenate(batches);

  EXPECT_EQ(joined.images.size(0), 5);
  EXPECT_THAT(joined.names, ElementsAre("a", "b", "c"));
}

TEST(Concatenate, KeepsTheStructure) {
  using Data = std::pair<std::map<int, at::Tensor>, std::variant<int, std::vector<at::Tensor>>>;
  const Data one{{{1, at::ones({1, 2})}}, std::vector<at::Tensor>{at::ones({2, 1})}};

  const Data joined = concatenate(std::vector<Data>{one, one}, 1);

  EXPECT_EQ(joined.first.at(1).sizes(), at::IntArrayRef({1, 4}));
  EXPECT_EQ(std::get<1>(joined.second)[0].sizes(), at::IntArrayRef({2, 2}));
}

TEST(Concatenate, RefusesBatchesOfDifferentStructure) {
  const std::vector<std::vector<at::Tensor>> lengths = {{at::ones({1})},
                                                        {at::ones({1}), at::ones({1})}};
  const std::vector<std::map<std::string, at::Tensor>> keys = {{{"a", at::ones({1})}},
                                                               {{"b", at::ones({1})}}};
  const std::vector<std::pair<int, at::Tensor>> leaves = {{1, at::ones({1})}, {2, at::ones({1})}};

  EXPECT_THAT(error_of([&] { concatenate(lengths); }).message(), HasSubstr("different lengths"));
  EXPECT_THAT(error_of([&] { concatenate(keys); }).message(), HasSubstr("different keys"));
  EXPECT_THAT(error_of([&] { concatenate(leaves); }).message(), HasSubstr("different values"));
  EXPECT_THAT(error_of([&] { concatenate(std::vector<at::Tensor>{}); }).message(),
              HasSubstr("none"));
}

TEST(ObjectCodec, GivesBackWhatItTook) {
  using Data = std::tuple<std::string,
                          std::vector<double>,
                          std::map<int, std::optional<bool>>,
                          std::unordered_map<std::string, Color>,
                          std::variant<std::monostate, int, std::string>,
                          std::array<std::pair<int, float>, 2>,
                          std::vector<bool>,
                          Batch>;
  const Data data{std::string("a\0b", 3),
                  {1.5, std::numeric_limits<double>::quiet_NaN()},
                  {{1, true}, {2, std::nullopt}},
                  {{"red", Color::kRed}, {"blue", Color::kBlue}},
                  std::string("text"),
                  {{{1, 2.0F}, {3, 4.0F}}},
                  {true, false},
                  {at::arange(4).view({2, 2}).to(at::kShort), {"x"}}};

  const Data back = decode_object<Data>(encode_object(data));

  EXPECT_EQ(std::get<0>(back), std::get<0>(data));
  EXPECT_TRUE(std::isnan(std::get<1>(back)[1]));
  EXPECT_THAT(std::get<2>(back), ElementsAre(Pair(1, std::optional(true)), Pair(2, std::nullopt)));
  EXPECT_EQ(std::get<3>(back), std::get<3>(data));
  EXPECT_EQ(std::get<4>(back), std::get<4>(data));
  EXPECT_EQ(std::get<5>(back), std::get<5>(data));
  EXPECT_EQ(std::get<6>(back), std::get<6>(data));
  EXPECT_TRUE(at::equal(std::get<7>(back).images, std::get<7>(data).images));
  EXPECT_EQ(std::get<7>(back).images.scalar_type(), at::kShort);
}

TEST(ObjectCodec, RefusesBytesThatAreCutShortOrOfAnotherType) {
  const std::string bytes = encode_object(std::vector<std::string>{"one", "two"});

  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Error error =
        error_of([&] { decode_object<std::vector<std::string>>(bytes.substr(0, size)); });
    EXPECT_EQ(error.code(), ErrorCode::kProtocol) << "cut to " << size << " bytes";
  }
  EXPECT_EQ(error_of([&] { decode_object<std::vector<int>>(bytes); }).code(), ErrorCode::kProtocol);
  EXPECT_EQ(error_of([&] { decode_object<std::vector<std::string>>(bytes + "x"); }).code(),
            ErrorCode::kProtocol);
}

}  // namespace
}  // namespace accel::nested_test

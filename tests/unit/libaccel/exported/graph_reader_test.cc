// The text of an exported graph: what is read of it, and how damage is refused.

#include "libaccel/exported/graph_reader.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"

namespace accel::exported::graph_reader_test {
namespace {

using nlohmann::json;
using test::error_of;
using test::ExportedArchive;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

json optional_graph() {
  return ExportedArchive("optional").graph();
}

// What reading the graph says after `change`.
Error damage(const std::function<void(json&)>& change) {
  json document = optional_graph();
  change(document["graph_module"]);
  return error_of([&] { static_cast<void>(read_graph(document.dump())); });
}

TEST(GraphReader, KeepsModulesAndLinesOfNodes) {
  const ExportedGraph graph = read_graph(ExportedArchive("blocks").graph().dump());
  const Node* up = nullptr;
  for (const Node& node : graph.graph.nodes)
    if (node.target == "torch.ops.aten.gelu.default" && up == nullptr) up = &node;
  ASSERT_NE(up, nullptr);
  ASSERT_EQ(up->calls.size(), 2u);
  EXPECT_EQ(up->calls[1].path, "blocks.0");
  EXPECT_EQ(up->calls[1].class_name, "__main__.Block");
  EXPECT_THAT(up->stack_trace, HasSubstr("make_models.py"));
  EXPECT_TRUE(graph.is_training_ir);
  EXPECT_FALSE(read_graph(ExportedArchive("counting").graph().dump()).is_training_ir);
}

TEST(GraphReader, RefusesValuesThatAreNotDefined) {
  EXPECT_THAT(damage([](json& module) {
                module["graph"]["nodes"][0]["inputs"][0]["arg"]["as_tensor"]["name"] = "add";
              }).message(),
              HasSubstr("'add' is used before it is defined"));
  EXPECT_THAT(damage([](json& module) {
                module["graph"]["nodes"][1]["outputs"][0]["as_tensor"]["name"] = "linear";
              }).message(),
              HasSubstr("'linear' is defined twice"));
}

TEST(GraphReader, RefusesTextThatIsNoGraph) {
  for (const char* text :
       {"", "{", "[]", "7", "{\"a\": 1, \"a\": 2}", "{\"schema_version\": {\"major\": 8}}"})
    EXPECT_EQ(error_of([&] { static_cast<void>(read_graph(text)); }).code(),
              ErrorCode::kCheckpointIncomplete)
        << text;
}

TEST(GraphReader, RefusesArgumentsOfTwoKinds) {
  EXPECT_THAT(damage([](json& module) {
                module["graph"]["nodes"][0]["inputs"][0]["arg"]["as_int"] = 3;
              }).message(),
              HasSubstr("not of exactly one kind"));
}

TEST(GraphReader, RefusesASignatureThatDoesNotFitTheGraph) {
  EXPECT_THAT(damage([](json& module) { module["signature"]["input_specs"].erase(0); }).message(),
              HasSubstr("its signature has 4 inputs, its graph 5"));
  EXPECT_THAT(damage([](json& module) {
                module["signature"]["output_specs"][0] = {
                    {"buffer_mutation", {{"arg", {{"name", "add"}}}, {"buffer_name", "sum"}}}};
              }).message(),
              HasSubstr("writes 'sum', which is no input"));
}

TEST(GraphReader, SaysThatGradientsAreNoOutputs) {
  const Error error = damage([](json& module) {
    module["signature"]["output_specs"][0] = {
        {"gradient_to_parameter", {{"arg", {{"name", "add"}}}, {"parameter_name", "line.bias"}}}};
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.remedy(), HasSubstr("forward alone"));
}

TEST(GraphReader, NamesLeavesByTheKeysThatLeadToThem) {
  const auto leaf = R"({"type": null, "context": null, "children_spec": []})";
  const auto tree =
      [&](const std::string& type, const std::string& context, const std::string& children) {
        return R"({"type": ")" + type + R"(", "context": )" + context + R"(, "children_spec": [)" +
               children + "]}";
      };
  const std::string two = std::string(leaf) + ", " + leaf;
  EXPECT_THAT(leaf_names("[1, " +
                         tree("builtins.dict",
                              R"("[\"loss\", \"past\"]")",
                              std::string(leaf) + ", " + tree("builtins.tuple", R"("null")", two)) +
                         "]"),
              ElementsAre("loss", "past.0", "past.1"));
  EXPECT_THAT(leaf_names("[1, " + tree("builtins.tuple", R"("null")", two) + "]"),
              ElementsAre("", ""));
  EXPECT_TRUE(leaf_names("nonsense").empty());
}

}  // namespace
}  // namespace accel::exported::graph_reader_test

// Exported models as modules: their names, what they compute and derive, their inputs, outputs and modes.
//
// models/make_models.py says what each file has in it. Expected values are computed here, by the same operators from the same
// parameters, so they are equal to the bit.

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/precision.h>
#include <accel/safetensors_file.h>

#include "libaccel/tensors/unique_parameters.h"
#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::exported_model_test {
namespace {

using test::error_of;
using test::exported_model;
using test::ExportedArchive;
using test::SameTensor;
using test::ScratchFolder;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

at::Tensor ids(std::int64_t rows = 3, std::int64_t columns = 4) {
  return at::arange(rows * columns).view({rows, columns}).remainder(16);
}

// A block of blocks.pt2, in evaluation or with dropout.
at::Tensor block_of(const Parameters& p, const std::string& path, const at::Tensor& x, bool drops) {
  const at::Tensor h =
      at::layer_norm(x, {8}, p[path + ".norm.weight"], p[path + ".norm.bias"], 1e-5, false);
  const at::Tensor up = at::gelu(at::linear(h, p[path + ".up.weight"], p[path + ".up.bias"]));
  const at::Tensor down = at::linear(up, p[path + ".down.weight"], p[path + ".down.bias"]);
  return x + at::dropout(down, 0.25, drops);
}

at::Tensor logits_of(const Parameters& p, const at::Tensor& tokens, bool drops) {
  const at::Tensor places =
      at::arange(tokens.size(1)).to(at::kFloat).cos().unsqueeze(0).unsqueeze(2);
  at::Tensor x = at::embedding(p["embed.weight"], tokens) * 2.0 + places;
  for (const char* path : {"blocks.0", "blocks.1"}) x = block_of(p, path, x, drops);
  return at::linear(x, p["embed.weight"]);
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
}

void seed() {
  at::manual_seed(5);
}

TEST(ExportedModel, HasPythonsNamesAndClasses) {
  ExportedModel net(exported_model("blocks"));

  EXPECT_THAT(net->named_parameters().keys(),
              ElementsAre("embed.weight",
                          "blocks.0.norm.weight",
                          "blocks.0.norm.bias",
                          "blocks.0.up.weight",
                          "blocks.0.up.bias",
                          "blocks.0.down.weight",
                          "blocks.0.down.bias",
                          "blocks.1.norm.weight",
                          "blocks.1.norm.bias",
                          "blocks.1.up.weight",
                          "blocks.1.up.bias",
                          "blocks.1.down.weight",
                          "blocks.1.down.bias",
                          "head.weight"));
  EXPECT_THAT(net->named_buffers().keys(), ElementsAre("scale", "calls"));
  const auto modules = net->named_modules();
  EXPECT_EQ(net->name(), "__main__.Blocks");
  EXPECT_EQ(modules["blocks"]->name(), "torch.nn.modules.container.ModuleList");
  EXPECT_EQ(modules["blocks.1"]->name(), "__main__.Block");
  EXPECT_EQ(modules["blocks.1.up"]->name(), "torch.nn.modules.linear.Linear");
}

TEST(ExportedModel, KeepsTiedWeightsOneTensor) {
  ExportedModel net(exported_model("blocks"));
  const auto parameters = net->named_parameters();
  EXPECT_TRUE(parameters["head.weight"].is_same(parameters["embed.weight"]));
}

TEST(ExportedModel, ComputesAndDerivesAsItsOperatorsDo) {
  ExportedModel net(exported_model("blocks"));
  seed();
  const ExportedOutputs outputs = net(ids(), ids());
  outputs["loss"].backward();
  std::vector<at::Tensor> gradients;
  const std::vector<at::Tensor> parameters = unique_parameters(net->parameters());
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  seed();
  const at::Tensor logits = logits_of(net->named_parameters(), ids(), /*drops=*/true);
  loss_of(logits, ids()).backward();

  EXPECT_THAT(outputs.names, ElementsAre("loss", "logits"));
  EXPECT_THAT(outputs["logits"], SameTensor(logits));
  EXPECT_THAT(outputs["loss"], SameTensor(loss_of(logits, ids())));
  std::size_t next = 0;
  for (const at::Tensor& parameter : parameters)
    EXPECT_THAT(gradients[next++], SameTensor(parameter.grad()));
}

TEST(ExportedModel, TakesInputsByNameAndOtherSizes) {
  ExportedModel net(exported_model("blocks"));
  net->eval();
  for (const auto& [rows, columns] : {std::pair{1, 4}, {5, 7}}) {
    const at::Tensor tokens = ids(rows, columns);
    const ExportedOutputs outputs = net(ExportedInputs{{"labels", tokens}, {"ids", tokens}});
    EXPECT_THAT(outputs["logits"],
                SameTensor(logits_of(net->named_parameters(), tokens, /*drops=*/false)));
  }
}

TEST(ExportedModel, KnowsHowManyRowsItsInputsAreLookedUpIn) {
  ExportedModel net(exported_model("blocks"));
  EXPECT_EQ(net->index_limit("ids"), 16);
  EXPECT_EQ(net->index_limit("labels"), -1);
  EXPECT_EQ(error_of([&] { (void)net->index_limit("tokens"); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(ExportedModel, IsItsLossWhereATensorIsWanted) {
  ExportedModel net(exported_model("blocks"));
  net->eval();
  const at::Tensor loss = net(ids(), ids());
  EXPECT_EQ(loss.dim(), 0);
}

TEST(ExportedModel, WritesTheBuffersThatItsGraphWrites) {
  ExportedModel net(exported_model("blocks"));
  net(ids(), ids());
  net(ids(), ids());
  EXPECT_EQ(net->named_buffers()["calls"].item<std::int64_t>(), 2);
}

TEST(ExportedModel, CopiesNewValuesOfBuffersAndInputsBack) {
  ExportedModel net(exported_model("counting"));
  const at::Tensor x = at::ones({2, 4});
  const at::Tensor seen = at::zeros({1});
  net(x, seen);
  net(x, seen);
  EXPECT_THAT(net->named_buffers()["sum"], SameTensor(at::full({4}, 4.0)));
  EXPECT_THAT(seen, SameTensor(at::full({1}, 2.0)));
}

TEST(ExportedModel, ReturnsTuplesNoneAndNumbersFlat) {
  ExportedModel net(exported_model("norms"));
  const ExportedOutputs outputs = net(at::randn({2, 2, 4, 4}));
  ASSERT_EQ(outputs.tensors.size(), 6u);
  EXPECT_EQ(outputs[0].sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(outputs[1].scalar_type(), at::kLong);
  EXPECT_EQ(outputs[3].sizes(), at::IntArrayRef({2, 3, 1}));
  EXPECT_FALSE(outputs[4].defined());
  EXPECT_EQ(outputs[5].item<std::int64_t>(), 7);
  const Error error = error_of([&] { static_cast<void>(outputs["loss"]); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
}

TEST(ExportedModel, EvaluationSwitchesDropoutOff) {
  ExportedModel net(exported_model("blocks"));
  EXPECT_TRUE(net->is_training());
  net->eval();
  const at::Tensor first = net(ids(), ids())["logits"];
  EXPECT_THAT(net(ids(), ids())["logits"], SameTensor(first));
  net->train();
  EXPECT_FALSE(net(ids(), ids())["logits"].equal(first));
}

TEST(ExportedModel, EvaluationUsesRunningStatisticsAndLeavesThem) {
  ExportedModel net(exported_model("norms"));
  const at::Tensor x = at::randn({2, 2, 4, 4});
  net(x);
  const auto buffers = net->named_buffers();
  const at::Tensor mean = buffers["norm.running_mean"].clone();
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<std::int64_t>(), 1);
  net->eval();
  const at::Tensor single = net(x)[0];
  EXPECT_THAT(net(at::cat({x[0].unsqueeze(0), x[0].unsqueeze(0)}))[0][0], SameTensor(single[0]));
  EXPECT_THAT(buffers["norm.running_mean"], SameTensor(mean));
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<std::int64_t>(), 1);
}

TEST(ExportedModel, RunsTheGraphOfItsMode) {
  ExportedModel net(exported_model("pair"));
  const at::Tensor x = at::randn({2, 4});
  const auto parameters = net->named_parameters();
  const at::Tensor line = at::linear(x, parameters["line.weight"], parameters["line.bias"]);
  EXPECT_THAT(at::Tensor(net(x)), SameTensor(line * 2));
  net->eval();
  EXPECT_THAT(at::Tensor(net(x)), SameTensor(line + at::ones({2})));
}

TEST(ExportedModel, StaysInEvaluationWhenItWasExportedSo) {
  ExportedModel net(exported_model("frozen"));
  EXPECT_FALSE(net->is_training());
  const Error error = error_of([&] { net->train(); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("evaluation mode"));
}

TEST(ExportedModel, ChoosesLoopsAndCastsAsPythonDoes) {
  ExportedModel net(exported_model("control"));
  const auto p = net->named_parameters();
  for (const double sign : {1.0, -1.0}) {
    const at::Tensor x = at::full({5, 4}, sign);
    const ExportedOutputs outputs = net(x);
    const at::Tensor y = sign > 0 ? at::linear(x, p["a.weight"], p["a.bias"])
                                  : at::linear(x, p["b.weight"], p["b.bias"]) + 1;
    at::Tensor z;
    {
      const Autocast autocast{AutocastOptions{}};
      z = at::linear(y, p["a.weight"], p["a.bias"]);
    }
    EXPECT_EQ(z.scalar_type(), at::kBFloat16);
    EXPECT_THAT(outputs[0], SameTensor((z * 2 * 2 * 2).to(at::kFloat)));
    EXPECT_EQ(outputs[1].sizes(), at::IntArrayRef({6, 4}));
    EXPECT_THAT(outputs[2], SameTensor(at::full({20}, 1.0).sum() * 20 / 3));
  }
}

TEST(ExportedModel, ReportsAnAssertionOfThePythonCodeWithItsLine) {
  ExportedModel net(exported_model("control"));
  try {
    net(at::full({5, 4}, 50.0));
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("u1"), HasSubstr("control.pt2"), HasSubstr("node _assert")));
  }
}

TEST(ExportedModel, NamesTheNodeAndTheLineWhereAnOperatorFails) {
  ExportedModel net(exported_model("blocks"));
  try {
    net(ids() + 100, ids());
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("node embedding"), HasSubstr("make_models.py")));
  }
}

TEST(ExportedModel, SaysWhichTensorsItTakes) {
  ExportedModel net(exported_model("blocks"));
  EXPECT_EQ(net->input_dtype("ids"), at::kLong);
  EXPECT_THAT(net->input_sizes("ids"), ElementsAre(-1, -1));
  EXPECT_EQ(ExportedModel(exported_model("field"))->input_dtype("x"), at::kFloat);
  EXPECT_EQ(error_of([&] { (void)net->input_dtype("x"); }).code(), ErrorCode::kInvalidArgument);
}

TEST(ExportedModel, LeavesOutWhatWasExportedAsNone) {
  ExportedModel net(exported_model("optional"));
  const at::Tensor x = at::randn({2, 4});
  EXPECT_THAT(net->input_names(), ElementsAre("x", "bias"));
  const at::Tensor expected = net(x, at::zeros({4}));
  EXPECT_THAT(
      at::Tensor(net(ExportedInputs{{"x", x}, {"mask", at::Tensor()}, {"bias", at::zeros({4})}})),
      SameTensor(expected));
  const Error mask = error_of([&] {
    net(ExportedInputs{{"x", x}, {"mask", x}, {"bias", at::zeros({4})}});
  });
  EXPECT_THAT(mask.message(), AllOf(HasSubstr("'mask'"), HasSubstr("constant")));
  const Error missing = error_of([&] { net(ExportedInputs{{"x", x}}); });
  EXPECT_THAT(missing.message(), AllOf(HasSubstr("'bias'"), HasSubstr("missing")));
  const Error unknown = error_of([&] { net(ExportedInputs{{"y", x}}); });
  EXPECT_THAT(unknown.message(), AllOf(HasSubstr("'y'"), HasSubstr("x, bias")));
  EXPECT_THAT(error_of([&] { net(x); }).message(), HasSubstr("takes 2 inputs (x, bias), got 1"));
}

TEST(ExportedModel, NamesTheDimensionThatDoesNotFit) {
  ExportedModel blocks(exported_model("blocks"));
  const Error range = error_of([&] { blocks(ids(70, 4), ids(70, 4)); });
  EXPECT_EQ(range.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(range.message(),
              AllOf(HasSubstr("'ids'"), HasSubstr("70 in dimension 0"), HasSubstr("1 to 64")));
  const Error other = error_of([&] { blocks(ids(3, 4), ids(2, 4)); });
  EXPECT_THAT(other.message(),
              AllOf(HasSubstr("'labels'"), HasSubstr("expected 3"), HasSubstr("dimension 0")));
  const Error fixed = error_of([&] {
    ExportedModel(exported_model("optional"))(at::ones({3, 4}), at::ones({4}));
  });
  EXPECT_THAT(fixed.message(), AllOf(HasSubstr("'x'"), HasSubstr("expected 2 in dimension 0")));
  EXPECT_THAT(error_of([&] { blocks(ids().to(at::kFloat), ids()); }).message(),
              HasSubstr("expected integers"));
  EXPECT_THAT(error_of([&] { blocks(ids()[0], ids()); }).message(),
              HasSubstr("expected 2 dimensions"));
}

TEST(ExportedModel, FollowsADtype) {
  ExportedModel net(exported_model("optional"));
  net->to(at::kDouble);
  const at::Tensor output = net(at::ones({2, 4}, at::kDouble), at::zeros({4}, at::kDouble));
  EXPECT_EQ(output.scalar_type(), at::kDouble);
}

TEST(ExportedModel, RunsUnderAutocast) {
  ExportedModel net(exported_model("control"));
  const Autocast autocast{AutocastOptions{}};
  EXPECT_EQ(net(at::ones({5, 4}))[0].scalar_type(),
            at::kFloat);  // asserts of the trace are not in the way
}

// --- weights of another file

TEST(ExportedModel, TakesItsWeightsFromASafetensorsFile) {
  const ScratchFolder folder;
  ExportedModel first(exported_model("blocks"));
  safetensors::TensorMap tensors;
  for (const auto& item : first->named_parameters())
    if (item.key() != "embed.weight") tensors[item.key()] = item.value().detach() + 1;
  safetensors::save_file(tensors, folder.file("other.safetensors"));

  ExportedModel net(exported_model("blocks"), {.weights = folder.file("other.safetensors")});

  const auto parameters = net->named_parameters();
  for (const auto& [name, tensor] : tensors)
    EXPECT_THAT(parameters[name], SameTensor(tensor)) << name;
  EXPECT_TRUE(
      parameters["embed.weight"].is_same(parameters["head.weight"]));  // has the value of its twin
  EXPECT_EQ(net->named_buffers()["scale"].item<float>(), 2.0);         // the archive's
}

TEST(ExportedModel, NamesAllWeightsThatAreMissingOrOfOtherShapes) {
  const ScratchFolder folder;
  safetensors::save_file({{"line.weight", at::ones({3, 4})}}, folder.file("wrong.safetensors"));
  const Error error = error_of([&] {
    ExportedModel(exported_model("optional"), {.weights = folder.file("wrong.safetensors")});
  });
  EXPECT_EQ(error.code(), ErrorCode::kSafetensorsMismatch);
  EXPECT_THAT(
      error.message(),
      AllOf(HasSubstr("lacks line.bias"), HasSubstr("line.weight is [3, 4], expected [4, 4]")));
}

TEST(ExportedModel, AsksForTheWeightsOfAGraphThatHasNone) {
  const ScratchFolder folder;
  const Error error = error_of([&] { ExportedModel net(exported_model("empty")); });
  EXPECT_EQ(error.code(), ErrorCode::kSafetensorsMismatch);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("bias"), HasSubstr("weight")));
  safetensors::save_file({{"weight", at::ones({2, 4})}, {"bias", at::ones({2})}},
                         folder.file("model.safetensors"));
  ExportedModel net(exported_model("empty"), {.weights = folder.file("model.safetensors")});
  EXPECT_THAT(at::Tensor(net(at::ones({2, 4}))), SameTensor(at::full({2, 2}, 5.0)));
}

// --- files that are refused

Error refusal(ExportedArchive& archive) {
  const ScratchFolder folder;
  const std::string path = archive.write(folder.file("net.pt2"));
  return error_of([&] { ExportedModel net(path); });
}

TEST(ExportedModel, ReadsWhatTheTestsWrite) {
  const ScratchFolder folder;
  ExportedArchive archive("optional");
  ExportedModel net(archive.write(folder.file("net.pt2")));
  EXPECT_THAT(net->named_parameters().keys(), ElementsAre("line.weight", "line.bias"));
}

TEST(ExportedModel, RefusesOtherVersions) {
  ExportedArchive schema("optional");
  schema.graph()["schema_version"]["major"] = 9;
  Error error = refusal(schema);
  EXPECT_EQ(error.code(), ErrorCode::kCheckpointVersion);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("version 9"), HasSubstr("expected 8"), HasSubstr("2.11")));
  ExportedArchive format("optional");
  format.entries["archive_version"] = "1";
  EXPECT_EQ(refusal(format).code(), ErrorCode::kCheckpointVersion);
}

TEST(ExportedModel, NamesUnknownOperatorsWithTheirLines) {
  ExportedArchive archive("optional");
  archive.nodes()[0]["target"] = "torch.ops.detectron.align.default";
  archive.nodes()[1]["target"] = "torch.ops.aten.add.Nowhere";
  const Error error = refusal(archive);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("detectron::align (node linear, from File"),
                    HasSubstr("aten::add.Nowhere"),
                    HasSubstr("make_models.py")));
  EXPECT_THAT(error.remedy(), HasSubstr("register_operator"));
}

TEST(ExportedModel, SaysHowToExportWhatWasDecomposedForInference) {
  const Error error = error_of([&] { ExportedModel net(exported_model("inference")); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("decomposed for inference"));
  EXPECT_THAT(error.remedy(), HasSubstr("run_decompositions"));
}

TEST(ExportedModel, RefusesPickles) {
  ExportedArchive archive("optional");
  archive.weights()["line.bias"]["use_pickle"] = true;
  const Error error = refusal(archive);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("line.bias"), HasSubstr("pickle")));
}

TEST(ExportedModel, NamesAWeightThatTheArchiveLacks) {
  ExportedArchive archive("optional");
  archive.weights().erase("line.bias");
  EXPECT_THAT(refusal(archive).message(), HasSubstr("line.bias, which has no values"));
}

TEST(ExportedModel, RefusesTensorsBeyondTheirBytes) {
  ExportedArchive size("optional");
  size.weights()["line.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 5;
  EXPECT_THAT(refusal(size).message(), HasSubstr("line.weight is not within the 64 bytes"));
  ExportedArchive offset("optional");
  offset.weights()["line.weight"]["tensor_meta"]["storage_offset"]["as_int"] = 1;
  EXPECT_THAT(refusal(offset).message(), HasSubstr("is not within"));
  ExportedArchive stride("optional");
  stride.weights()["line.weight"]["tensor_meta"]["strides"][0]["as_int"] = INT64_MAX;
  EXPECT_THAT(refusal(stride).message(), HasSubstr("is not within"));
  ExportedArchive negative("optional");
  negative.weights()["line.weight"]["tensor_meta"]["sizes"][0]["as_int"] = -4;
  EXPECT_THAT(refusal(negative).message(), HasSubstr("below 0"));
}

TEST(ExportedModel, RefusesTwoParametersOfOneName) {
  ExportedArchive archive("optional");
  auto& specs = archive.graph()["graph_module"]["signature"]["input_specs"];
  specs[1]["parameter"]["parameter_name"] = "line.weight";
  EXPECT_THAT(refusal(archive).message(), HasSubstr("two of its tensors are called 'line.weight'"));
}

TEST(ExportedModel, RefusesAFileThatIsCutShort) {
  const ScratchFolder folder;
  ExportedArchive archive("optional");
  const std::string path = archive.write(folder.file("net.pt2"));
  const auto size = std::filesystem::file_size(path);
  for (const std::uintmax_t left : {size - 1, size / 2, std::uintmax_t{10}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(path, left);
    EXPECT_EQ(error_of([&] { ExportedModel net(path); }).code(), ErrorCode::kCheckpointIncomplete)
        << left;
  }
  EXPECT_EQ(error_of([&] { ExportedModel net(folder.file("none.pt2")); }).code(),
            ErrorCode::kFileIo);
}

TEST(ExportedModel, RefusesAModuleInThePlaceOfAParameter) {
  ExportedArchive archive("optional");
  auto& specs = archive.graph()["graph_module"]["signature"]["input_specs"];
  for (const char* name : {"line", "line..weight", "", "."}) {
    specs[1]["parameter"]["parameter_name"] = name;
    archive.weights()[name] = archive.weights()["line.bias"];
    const ErrorCode code = refusal(archive).code();
    EXPECT_EQ(code, ErrorCode::kCheckpointIncomplete) << name;
  }
}

}  // namespace
}  // namespace accel::exported_model_test

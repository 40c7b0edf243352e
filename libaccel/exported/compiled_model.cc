#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accel/compiled_model.h>
#include <accel/error.h>
#include <accel/safetensors_file.h>

#include "libaccel/exported/compiled_code.h"
#include "libaccel/exported/graph_reader.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel {
namespace {

exported::CompiledPackage package_of(const exported::Archive& archive, const std::string& model) {
  const std::vector<std::string> models = exported::CompiledPackage::models(archive);
  if (models.empty())
    throw Error(ErrorCode::kCheckpointIncomplete,
                printable(archive.path()) + " has no compiled code",
                "write it with torch._inductor.aoti_compile_and_package(); accel::ExportedModel "
                "loads what torch.export.save() wrote");
  if (std::ranges::find(models, model) == models.end())
    throw Error(ErrorCode::kInvalidArgument,
                printable(archive.path()) + " has no compiled model '" + printable(model) +
                    "'; it has " + printable(joined(models, ", ")),
                "name one of them in CompiledModelOptions::model");
  exported::CompiledPackage package(archive, model);
  if (package.is_of_graph())
    throw Error(
        ErrorCode::kUnsupported,
        "the compiled code of " + printable(archive.path()) + " takes the tensors of its graph",
        "load it with accel::ExportedModel and ExportedModelOptions::compiled");
  return package;
}

std::map<std::string, at::Tensor> constants_of(const std::vector<std::string>& names,
                                               const std::filesystem::path& weights) {
  safetensors::TensorMap given;
  if (!weights.empty()) given = safetensors::load_file(weights);
  std::map<std::string, at::Tensor> constants;
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    const auto found = given.find(name);
    if (found == given.end())
      missing.push_back(printable(name));
    else
      constants.emplace(name, found->second.contiguous());
  }
  if (!missing.empty())
    throw Error(ErrorCode::kSafetensorsMismatch,
                (weights.empty() ? "the compiled model was written without the values of "
                                 : printable(weights.string()) + " lacks ") +
                    joined(missing, ", "),
                "give a safetensors file with them in CompiledModelOptions::weights");
  return constants;
}

// The end of a C++ exception's text says what, its beginning where in LibTorch.
std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

CompiledModelImpl::CompiledModelImpl(const std::filesystem::path& path,
                                     const CompiledModelOptions& options)
    : torch::nn::Module("CompiledModel"), source_(path.filename().string()) {
  try {
    ::setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*replace=*/0);
    const exported::Archive archive(path, exported::Archive::Holds::kAnything);
    code_ = std::make_unique<exported::CompiledCode>(package_of(archive, options.model), source_);
    code_->use_constants(constants_of(code_->missing_constants(), options.weights));
    outputs_ = exported::leaf_names(code_->outputs_tree());
  } catch (Error& error) {
    throw std::move(error).while_doing("loading the compiled model " + printable(path.string()));
  }
  torch::nn::Module::train(false);
}

CompiledModelImpl::~CompiledModelImpl() = default;

ExportedOutputs CompiledModelImpl::forward(std::vector<at::Tensor> inputs) {
  std::vector<std::int64_t> order(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    order[i] = static_cast<std::int64_t>(i);
    if (inputs[i].requires_grad() && at::GradMode::is_enabled())
      throw Error(ErrorCode::kUnsupported,
                  "input " + std::to_string(i) + " of the compiled model " + printable(source_) +
                      " requires a gradient, and compiled code gives none",
                  "evaluate within torch::NoGradGuard; accel::ExportedModel trains");
  }
  ExportedOutputs outputs;
  try {
    outputs.tensors = code_->run(std::move(inputs), {}, order);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                "the compiled model " + printable(source_) +
                    " failed: " + printable(last_line(error.what())),
                "give the inputs that it was compiled for; it says more on stderr");
  }
  outputs.names = outputs_;
  outputs.names.resize(outputs.tensors.size());
  for (std::size_t i = 0; i < outputs.names.size(); ++i)
    if (outputs.names[i].empty()) outputs.names[i] = std::to_string(i);
  return outputs;
}

void CompiledModelImpl::train(bool on) {
  if (on)
    throw Error(ErrorCode::kUnsupported,
                "the compiled model " + printable(source_) + " cannot be trained",
                "export the model with accel export, and load it with accel::ExportedModel");
  torch::nn::Module::train(on);
}

}  // namespace accel

#include <algorithm>
#include <utility>

#include <accel/error.h>
#include <accel/exported_model.h>

#include "libaccel/exported/loaded_model.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel {

const at::Tensor& ExportedOutputs::operator[](std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return tensors[static_cast<std::size_t>(found - names.begin())];
  throw Error(ErrorCode::kInvalidArgument,
              "the exported model has no output '" + printable(name) + "'; it returns " +
                  printable(joined(names, ", ")),
              "name one of its outputs");
}

ExportedOutputs::operator const at::Tensor&() const {
  return tensors.size() == 1 ? tensors.front() : (*this)["loss"];
}

ExportedModelImpl::ExportedModelImpl(const std::filesystem::path& path,
                                     const ExportedModelOptions& options)
    : ExportedModelImpl(std::make_unique<exported::LoadedModel>(path, options)) {}

ExportedModelImpl::ExportedModelImpl(std::unique_ptr<exported::LoadedModel> model)
    : torch::nn::Module(model->class_name()), model_(std::move(model)) {
  model_->attach(*this);
  train(model_->starts_in_training());
}

ExportedModelImpl::~ExportedModelImpl() = default;

ExportedOutputs ExportedModelImpl::forward(const ExportedInputs& inputs) {
  return run(model_->graph(is_training()).in_order(inputs));
}

ExportedOutputs ExportedModelImpl::run(std::vector<c10::IValue> inputs) {
  return model_->graph(is_training()).run(std::move(inputs));
}

std::vector<std::int64_t> ExportedModelImpl::input_sizes(const std::string& name) const {
  return model_->graph(is_training()).input_sizes(name);
}

std::optional<at::ScalarType> ExportedModelImpl::input_dtype(const std::string& name) const {
  return model_->graph(is_training()).input_dtype(name);
}

std::int64_t ExportedModelImpl::index_limit(const std::string& name) const {
  return model_->graph(is_training()).index_limit(name);
}

std::vector<std::string> ExportedModelImpl::input_names() const {
  return model_->graph(is_training()).input_names();
}

std::vector<std::string> ExportedModelImpl::output_names() const {
  return model_->graph(is_training()).output_names();
}

bool ExportedModelImpl::is_persistent_buffer(const std::string& name) const {
  return model_->is_persistent_buffer(name);
}

std::string ExportedModelImpl::why_not_compiled() const {
  return model_->why_not_compiled(is_training());
}

void ExportedModelImpl::add_hook(const std::string& path,
                                 std::shared_ptr<ModelHook> hook,
                                 bool append) {
  model_->add_hook(*this, path, std::move(hook), append);
}

void ExportedModelImpl::remove_hook(const std::string& path, bool recurse) {
  model_->remove_hooks(path, recurse);
}

void ExportedModelImpl::train(bool on) {
  model_->set_training(on);
  torch::nn::Module::train(on);
}

void ExportedModelImpl::to(at::Device device, at::ScalarType dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  model_->move_to(device, dtype, non_blocking);
}

void ExportedModelImpl::to(at::ScalarType dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  model_->move_to(std::nullopt, dtype, non_blocking);
}

void ExportedModelImpl::to(at::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  model_->move_to(device, std::nullopt, non_blocking);
}

}  // namespace accel

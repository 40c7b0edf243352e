#include "libaccel/exported/module_tree.h"

#include <set>
#include <utility>

#include <accel/non_persistent_buffers.h>

#include "libaccel/exported/graph_reader.h"
#include "runtime/printable.h"
#include "runtime/text/number_text.h"

namespace accel::exported {

class ExportedPart final : public torch::nn::Module, public NonPersistentBuffers {
 public:
  explicit ExportedPart(std::string class_name) : torch::nn::Module(std::move(class_name)) {}

  [[nodiscard]] bool is_persistent_buffer(const std::string& name) const override {
    return !not_saved_.contains(name);
  }
  void do_not_save(const std::string& buffer) { not_saved_.insert(buffer); }

 private:
  std::set<std::string> not_saved_;
};

namespace {

// The parameters of a module, which it shows to classes derived from it alone.
struct ModuleParameters : torch::nn::Module {
  static at::Tensor& find(torch::nn::Module& module, const std::string& key) {
    return (module.*(&ModuleParameters::parameters_))[key];
  }
};

SplitName split_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

const at::Tensor& TensorPlace::tensor() const {
  return owner == nullptr ? buffer : ModuleParameters::find(*owner, key);
}

std::string module_path(const std::string& call_path) {
  return call_path.substr(0, call_path.find('@'));
}

ClassNames class_names(const Graph& graph) {
  ClassNames classes;
  for (const Node& node : graph.nodes) {
    for (const ModuleCall& call : node.calls)
      classes.try_emplace(module_path(call.path), call.class_name);
    for (const NamedArgument& input : node.inputs)
      if (const auto* inner = std::get_if<GraphArgument>(&input.value))
        classes.merge(class_names(*inner->graph));
  }
  return classes;
}

void ModuleTree::expect(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    has_tensors_[split_name(name).path] = true;
    for (SplitName part = split_name(split_name(name).path); !part.last.empty();
         part = split_name(part.path)) {
      const auto [entry, is_new] = has_numbers_.try_emplace(part.path, true);
      entry->second = entry->second && is_digits(part.last);
    }
  }
}

std::string ModuleTree::class_of(const std::string& path) const {
  const auto found = classes_.find(path);
  if (found != classes_.end()) return found->second;
  if (has_tensors_.contains(path)) return "torch.nn.modules.module.Module";
  const auto numbers = has_numbers_.find(path);
  return numbers != has_numbers_.end() && numbers->second ? "torch.nn.modules.container.ModuleList"
                                                          : "torch.nn.modules.container.ModuleDict";
}

torch::nn::Module& ModuleTree::owner_of(const std::string& path) {
  if (path.empty()) return root_;
  const auto known = modules_.find(path);
  if (known != modules_.end()) return *known->second;
  const SplitName name = split_name(path);
  if (name.last.empty()) throw damaged_export("a module is called " + printable(path));
  torch::nn::Module& parent = owner_of(name.path);
  auto part = std::make_shared<ExportedPart>(class_of(path));
  ExportedPart* module = part.get();
  parent.register_module(name.last, std::move(part));
  modules_.emplace(path, module);
  return *module;
}

SplitName ModuleTree::split_tensor_name(const std::string& name) const {
  SplitName split = split_name(name);
  if (split.last.empty() || modules_.contains(name))
    throw damaged_export("a tensor is called '" + printable(name) + "'");
  return split;
}

TensorPlace ModuleTree::add_parameter(const std::string& name,
                                      const at::Tensor& tensor,
                                      bool requires_grad) {
  const SplitName split = split_tensor_name(name);
  torch::nn::Module& owner = owner_of(split.path);
  owner.register_parameter(split.last, tensor, requires_grad);
  return {.owner = &owner, .key = split.last};
}

TensorPlace ModuleTree::add_buffer(const std::string& name,
                                   const at::Tensor& tensor,
                                   bool is_persistent) {
  const SplitName split = split_tensor_name(name);
  torch::nn::Module& owner = owner_of(split.path);
  // The root is asked by its own class.
  if (!is_persistent && !split.path.empty()) modules_.at(split.path)->do_not_save(split.last);
  return {.buffer = owner.register_buffer(split.last, tensor)};
}

}  // namespace accel::exported

#include "libaccel/exporting/module_tensors.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace accel::exporting {
namespace {

constexpr std::array<std::string_view, 4> kContainers = {"torch.nn.ModuleList",
                                                         "torch.nn.ModuleDict",
                                                         "torch.nn.ParameterList",
                                                         "torch.nn.ParameterDict"};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

void add_parts(const torch::nn::Module& module,
               const std::string& path,
               std::map<std::string, ModulePart>& parts) {
  const auto children = module.named_children();
  ModulePart& part = parts[path];
  part.class_name = python_class(module.name());
  part.is_container = std::ranges::find(kContainers, part.class_name) != kContainers.end();
  part.is_leaf = children.is_empty();
  for (const auto& child : children)
    add_parts(*child.value(), path.empty() ? child.key() : path + "." + child.key(), parts);
}

}  // namespace

std::vector<ModuleTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<ModuleTensor> tensors;
  for (const auto& item : module.named_parameters())
    tensors.push_back({.name = item.key(), .tensor = item.value(), .is_parameter = true});
  for (const auto& item : module.named_buffers())
    tensors.push_back({.name = item.key(), .tensor = item.value(), .is_parameter = false});
  return tensors;
}

std::map<std::string, ModulePart> parts_of(const torch::nn::Module& module) {
  std::map<std::string, ModulePart> parts;
  add_parts(module, "", parts);
  return parts;
}

std::string python_class(const std::string& name) {
  std::string text = name;
  replace_all(text, "(anonymous namespace)::", "");
  replace_all(text, "::", ".");
  if (text.ends_with("Impl")) text.resize(text.size() - 4);
  // What separates the parts of the file's texts.
  for (char& c : text)
    if (c == ',' || c == ';') c = '_';
  return text;
}

}  // namespace accel::exporting

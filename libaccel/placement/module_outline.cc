#include "libaccel/placement/module_outline.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include <torch/nn/module.h>

#include "libaccel/engine/sharding/wrap_policy.h"

namespace accel::placement {
namespace {

template <typename Items>
std::vector<OutlineTensor> outlines_of(const Items& items) {
  std::vector<OutlineTensor> tensors;
  for (const auto& item : items) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    tensors.push_back({.name = item.key(),
                       .id = tensor.unsafeGetTensorImpl(),
                       .dtype = tensor.scalar_type(),
                       .numel = tensor.numel()});
  }
  return tensors;
}

bool is_whole_number(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

class SizeSum {
 public:
  SizeSum(const ModuleSizesOptions& options, ModuleSizes& sizes)
      : options_(options), sizes_(sizes) {}

  void add_all(const OutlineModule& model, std::vector<OutlineTensor> OutlineModule::*tensors) {
    std::unordered_set<const void*> modules;
    visit_modules(model, [&](const std::string& path, const OutlineModule& module) {
      if (!modules.insert(module.id).second) return;
      for (const OutlineTensor& tensor : module.*tensors)
        if (seen_.insert(tensor.id).second) add(path_of(path, tensor.name), tensor);
    });
  }

 private:
  void add(const std::string& name, const OutlineTensor& tensor) {
    const double bytes = static_cast<double>(tensor.numel) * bytes_of_value(name, tensor);
    sizes_.add("", bytes);
    for (std::size_t end = name.find('.'); end != std::string::npos; end = name.find('.', end + 1))
      sizes_.add(name.substr(0, end), bytes);
    sizes_.add(name, bytes);
  }
  [[nodiscard]] double bytes_of_value(const std::string& name, const OutlineTensor& tensor) const {
    const double own = dtype_byte_size(tensor.dtype);
    const auto special = options_.special_dtypes.find(name);
    if (special != options_.special_dtypes.end()) return dtype_byte_size(special->second);
    if (!options_.dtype || is_whole_number(tensor.dtype)) return own;
    return std::min(own, dtype_byte_size(*options_.dtype));
  }

  const ModuleSizesOptions& options_;
  ModuleSizes& sizes_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

OutlineModule outline_of(const torch::nn::Module& model) {
  OutlineModule outline{.name = "",
                        .class_name = sharding::class_name_of(model.name()),
                        .id = &model,
                        .parameters = outlines_of(model.named_parameters(/*recurse=*/false)),
                        .buffers = outlines_of(model.named_buffers(/*recurse=*/false)),
                        .children = {}};
  for (const auto& child : model.named_children()) {
    outline.children.push_back(outline_of(*child.value()));
    outline.children.back().name = child.key();
  }
  return outline;
}

std::string path_of(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

void visit_modules(const OutlineModule& module,
                   const std::function<void(const std::string&, const OutlineModule&)>& visit) {
  const std::function<void(const std::string&, const OutlineModule&)> walk =
      [&](const std::string& path, const OutlineModule& here) {
        visit(path, here);
        for (const OutlineModule& child : here.children) walk(path_of(path, child.name), child);
      };
  walk("", module);
}

const OutlineModule* find_module(const OutlineModule& model, const std::string& path) {
  if (path.empty()) return &model;
  const std::string name = path.substr(0, path.find('.'));
  const auto child = std::ranges::find(model.children, name, &OutlineModule::name);
  if (child == model.children.end()) return nullptr;
  return find_module(*child, name.size() == path.size() ? "" : path.substr(name.size() + 1));
}

std::vector<std::vector<std::string>> tied_parameters(const OutlineModule& model) {
  std::vector<const void*> order;
  std::unordered_map<const void*, std::set<std::string>> names;
  visit_modules(model, [&](const std::string& path, const OutlineModule& module) {
    for (const OutlineTensor& parameter : module.parameters) {
      auto& all = names[parameter.id];
      if (all.empty()) order.push_back(parameter.id);
      all.insert(path_of(path, parameter.name));
    }
  });
  std::vector<std::vector<std::string>> groups;
  for (const void* id : order) {
    const auto& all = names.at(id);
    if (all.size() > 1) groups.emplace_back(all.begin(), all.end());
  }
  return groups;
}

void ModuleSizes::add(const std::string& path, double bytes) {
  const auto [place, is_new] = places_.try_emplace(path, entries_.size());
  if (is_new) entries_.emplace_back(path, 0);
  entries_[place->second].second += bytes;
}

double ModuleSizes::operator[](const std::string& path) const {
  const auto place = places_.find(path);
  return place == places_.end() ? 0 : entries_[place->second].second;
}

ModuleSizes sizes_of(const OutlineModule& model, const ModuleSizesOptions& options) {
  ModuleSizes sizes;
  SizeSum sum(options, sizes);
  if (!options.buffers_only) sum.add_all(model, &OutlineModule::parameters);
  sum.add_all(model, &OutlineModule::buffers);
  return sizes;
}

}  // namespace accel::placement

namespace accel {

std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& model) {
  return placement::tied_parameters(placement::outline_of(model));
}

std::map<std::string, double> compute_module_sizes(const torch::nn::Module& model,
                                                   const ModuleSizesOptions& options) {
  const auto sizes = placement::sizes_of(placement::outline_of(model), options);
  return {sizes.entries().begin(), sizes.entries().end()};
}

}  // namespace accel

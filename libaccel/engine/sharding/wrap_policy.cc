// SIZE_BASED_WRAP is torch.distributed.fsdp.wrap's recursion: children first; a module is wrapped when the parameters
// that its children's units left over are at least min_num_params. Lists and dictionaries of modules are not wrapped,
// and attention is not looked into, as there.

#include "libaccel/engine/sharding/wrap_policy.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include <fnmatch.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <accel/error.h>

#include "libaccel/tensors/unique_parameters.h"
#include "libaccel/tensors/unit_layout.h"
#include "runtime/suggest.h"

namespace accel::sharding {
namespace {

using Groups = std::unordered_map<const c10::TensorImpl*, int>;

// Without arguments of templates, what TORCH_MODULE adds, and what TorchScript puts before the name of a class that it has met
// before: the layers of a traced model are __torch__.Block, __torch__.___torch_mangle_1.Block and so on.
std::string qualified_name_of(const std::string& cpp_name) {
  static const std::regex mangle(R"((^|\.)___torch_mangle_[0-9]+\.)");
  std::string name = std::regex_replace(cpp_name.substr(0, cpp_name.find('<')), mangle, "$1");
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.ends_with(kImpl)) name.resize(name.size() - kImpl.size());
  return name;
}

// Where the last part of a qualified name begins, of C++ or of TorchScript.
std::size_t begin_of_last_part(const std::string& name) {
  const auto separator = name.find_last_of(":.");
  return separator == std::string::npos ? 0 : separator + 1;
}

// "Block", "BlockImpl", "models::Block" and "accel::models::Block" are the class accel::models::BlockImpl; "Block", "gpt.Block"
// and "__torch__.gpt.Block" the class of that name of TorchScript.
bool is_class(const std::string& wanted, const std::string& cpp_name) {
  const std::string name = qualified_name_of(cpp_name);
  const std::string suffix = qualified_name_of(wanted);
  if (!name.ends_with(suffix)) return false;
  const std::size_t begin = name.size() - suffix.size();
  return begin == 0 || name[begin - 1] == ':' || name[begin - 1] == '.';
}

// Whether a glob means the module at this path: "blocks.*" those of blocks, not what they contain.
bool is_path(std::string wanted, std::string path) {
  if (wanted.find_first_of("*?[") == std::string::npos) return false;
  std::replace(wanted.begin(), wanted.end(), '.', '/');
  std::replace(path.begin(), path.end(), '.', '/');
  return ::fnmatch(wanted.c_str(), path.c_str(), FNM_PATHNAME) == 0;
}

class Grouper {
 public:
  explicit Grouper(const FsdpSettings& settings) : settings_(settings) {}

  Groups by_class(const torch::nn::Module& root) {
    std::set<std::string> classes;
    std::set<std::string> matched;
    wrap_classes(root, "", classes, matched);
    for (const std::string& name : settings_.transformer_classes) {
      if (!matched.contains(name)) throw unknown_class(name, classes);
    }
    claim(root, kRootGroup);
    return std::move(groups_);
  }

  Groups by_size(const torch::nn::Module& root) {
    wrap_sizes(root, /*is_root=*/true);
    claim(root, kRootGroup);
    return std::move(groups_);
  }

 private:
  static Error unknown_class(const std::string& name, const std::set<std::string>& classes) {
    std::string listed;
    for (const std::string& known : classes) listed += (listed.empty() ? "" : ", ") + known;
    const auto guess = nearest(class_name_of(name), {classes.begin(), classes.end()});
    return Error(
        ErrorCode::kInvalidArgument,
        "could not find the transformer layer class " + name + " in the model; it has " + listed +
            (guess ? "; did you mean " + *guess + "?" : ""),
        "correct transformer_cls_names_to_wrap: names of classes, or of modules as in blocks.*");
  }

  // Inner units first, so that they keep what is theirs.
  void wrap_classes(const torch::nn::Module& module,
                    const std::string& path,
                    std::set<std::string>& classes,
                    std::set<std::string>& matched) {
    const std::string name = module.name();
    classes.insert(class_name_of(name));
    for (const auto& child : module.named_children()) {
      wrap_classes(
          *child.value(), path.empty() ? child.key() : path + "." + child.key(), classes, matched);
    }
    bool is_wanted = false;
    for (const std::string& wanted : settings_.transformer_classes) {
      if (!is_class(wanted, name) && !is_path(wanted, path)) continue;
      matched.insert(wanted);
      is_wanted = true;
    }
    if (is_wanted) claim(module, next_++);
  }

  // Returns how many parameters units took.
  std::int64_t wrap_sizes(const torch::nn::Module& module, bool is_root) {
    std::int64_t numel = 0;
    for (const at::Tensor& parameter : unique_parameters(module.parameters()))
      numel += parameter.numel();
    if (numel < settings_.min_num_params) return 0;
    std::int64_t taken = 0;
    const std::string name = class_name_of(module.name());
    if (module.as<torch::nn::MultiheadAttentionImpl>() == nullptr && name != "MultiheadAttention") {
      for (const auto& child : module.children()) taken += wrap_sizes(*child, false);
    }
    // By name too: modules of Python, of which there is the class's name alone.
    const bool is_container = module.as<torch::nn::ModuleListImpl>() != nullptr ||
                              module.as<torch::nn::ModuleDictImpl>() != nullptr ||
                              name == "ModuleList" || name == "ModuleDict";
    if (is_root || is_container || numel - taken < settings_.min_num_params) return taken;
    claim(module, next_++);
    return numel;
  }

  void claim(const torch::nn::Module& module, int group) {
    for (const at::Tensor& parameter : module.parameters()) {
      groups_.try_emplace(parameter.unsafeGetTensorImpl(), group);
    }
  }

  const FsdpSettings& settings_;
  Groups groups_;
  int next_ = 0;
};

std::regex regex_of(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "ignored_modules is '" + text + "', which is no regular expression: " + error.what());
  }
}

// Those of the modules with these names. All names that no module has are said at once.
std::unordered_set<const c10::TensorImpl*> parameters_of(const torch::nn::Module& module,
                                                         const std::vector<std::string>& names) {
  const auto modules = module.named_modules("", /*include_self=*/false);
  std::unordered_set<const c10::TensorImpl*> parameters;
  std::string unknown;
  for (const std::string& name : names) {
    const auto* found = modules.find(name);
    if (found == nullptr) {
      const std::optional<std::string> guess = nearest(name, modules.keys());
      unknown += (unknown.empty() ? "'" : ", '") + name + "'" +
                 (guess ? " (did you mean '" + *guess + "'?)" : "");
      continue;
    }
    for (const at::Tensor& parameter : (*found)->parameters())
      parameters.insert(parameter.unsafeGetTensorImpl());
  }
  if (unknown.empty()) return parameters;
  throw Error(ErrorCode::kInvalidArgument,
              "ignored_modules names " + unknown + ", which no module of the model is called",
              "name modules as named_modules() does");
}

}  // namespace

std::string class_name_of(const std::string& cpp_name) {
  const std::string name = qualified_name_of(cpp_name);
  return name.substr(begin_of_last_part(name));
}

std::unordered_set<const c10::TensorImpl*> ignored_parameters(const torch::nn::Module& module,
                                                              const FsdpSettings& settings) {
  if (!settings.ignored_names.empty()) return parameters_of(module, settings.ignored_names);
  std::unordered_set<const c10::TensorImpl*> ignored;
  if (settings.ignored_modules.empty()) return ignored;
  const std::regex pattern = regex_of(settings.ignored_modules);
  bool matched = false;
  std::string names;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    names += (names.empty() ? "" : ", ") + item.key();
    if (!std::regex_match(item.key(), pattern)) continue;
    matched = true;
    for (const at::Tensor& parameter : item.value()->parameters())
      ignored.insert(parameter.unsafeGetTensorImpl());
  }
  if (!matched) {
    throw Error(ErrorCode::kInvalidArgument,
                "ignored_modules is '" + settings.ignored_modules +
                    "', which is the whole name of no module; there are " + names,
                "name modules as named_modules() does; leave ignored_modules out to shard all");
  }
  return ignored;
}

std::unordered_map<const c10::TensorImpl*, int> wrap_groups(const torch::nn::Module& module,
                                                            const FsdpSettings& settings) {
  switch (settings.wrap) {
    case AutoWrapPolicy::kTransformerBasedWrap:
      return Grouper(settings).by_class(module);
    case AutoWrapPolicy::kSizeBasedWrap:
      return Grouper(settings).by_size(module);
    case AutoWrapPolicy::kNoWrap:
      break;
  }
  Groups groups;
  for (const at::Tensor& parameter : module.parameters())
    groups.emplace(parameter.unsafeGetTensorImpl(), kNoGroup);
  return groups;
}

}  // namespace accel::sharding

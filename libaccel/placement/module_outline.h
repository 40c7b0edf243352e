// ModuleOutline: what planning needs of a model: its modules, their classes, and their tensors by name and type, without values.
//
// Names and order are those of Python's named_modules(), named_parameters() and named_buffers().
//
// Threads:  a value; borrows nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accel/device_map.h>

namespace torch::nn {
class Module;
}

namespace accel::placement {

struct OutlineTensor {
  std::string name;  // within its module
  const void* id{};  // the same for all names of a tied weight
  c10::ScalarType dtype{};
  std::int64_t numel{};
};

struct OutlineModule {
  std::string name;  // within its parent
  std::string class_name;
  const void* id{};
  std::vector<OutlineTensor> parameters;
  std::vector<OutlineTensor> buffers;
  std::vector<OutlineModule> children;
};

[[nodiscard]] OutlineModule outline_of(const torch::nn::Module& model);

// "a.b"; "b" within the model itself.
[[nodiscard]] std::string path_of(const std::string& parent, const std::string& name);

// Calls visit(path, module) for the module and all below it, parents first. A module that is used twice comes twice.
void visit_modules(const OutlineModule& module,
                   const std::function<void(const std::string&, const OutlineModule&)>& visit);

// nullptr: the path is no module's.
[[nodiscard]] const OutlineModule* find_module(const OutlineModule& model, const std::string& path);

[[nodiscard]] std::vector<std::vector<std::string>> tied_parameters(const OutlineModule& model);

// Bytes by path, in the order in which the paths appear.
class ModuleSizes {
 public:
  using Entry = std::pair<std::string, double>;
  void add(const std::string& path, double bytes);
  // 0 for a path that has none.
  [[nodiscard]] double operator[](const std::string& path) const;
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> places_;
};

[[nodiscard]] ModuleSizes sizes_of(const OutlineModule& model, const ModuleSizesOptions& options);

}  // namespace accel::placement

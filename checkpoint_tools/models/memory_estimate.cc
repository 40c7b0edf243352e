// Which module a tensor is counted for: the outermost one that stays whole, else the one that holds it. A block is the
// part of a name up to a component that is a number, "model.layers.3" of "model.layers.3.self_attn.q_proj.weight"; it stays
// whole when some tensor below it has attention in its name, which is so for the blocks that the peer's models list as
// never split, and not for those of convolutional ones.

#include "checkpoint_tools/models/memory_estimate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <unordered_map>

#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

struct DtypeSize {
  std::string_view name;
  double bytes;
  std::optional<double> training;  // bytes, for one element
};
constexpr std::array<DtypeSize, 5> kDtypes = {{{"float32", 4, 16},
                                               {"float16", 2, 8},
                                               {"bfloat16", 2, 8},
                                               {"int8", 1, std::nullopt},
                                               {"int4", 0.5, std::nullopt}}};

const DtypeSize* find_dtype_size(std::string_view name) noexcept {
  const auto* found = std::find_if(
      kDtypes.begin(), kDtypes.end(), [&](const DtypeSize& dtype) { return dtype.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

// The parts of a name between dots, as [begin, end) in it.
std::vector<std::string_view> components_of(std::string_view name) {
  std::vector<std::string_view> components;
  while (true) {
    const std::size_t dot = name.find('.');
    components.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return components;
    name.remove_prefix(dot + 1);
  }
}

std::string_view up_to(std::string_view name, std::string_view component) {
  return name.substr(0,
                     static_cast<std::size_t>(component.data() + component.size() - name.data()));
}

// Blocks of numbers below which something attends.
std::set<std::string_view> blocks_with_attention(const ModelInventory& model) {
  std::set<std::string_view> blocks;
  for (const ModelTensor& tensor : model.tensors) {
    const std::string_view name = tensor.name;
    const std::size_t attention = std::min(name.find("attn"), name.find("attention"));
    if (attention == std::string_view::npos) continue;
    for (const std::string_view component : components_of(name.substr(0, attention))) {
      if (!is_digits(component)) continue;
      blocks.insert(up_to(name, component));
      break;
    }
  }
  return blocks;
}

bool matches(const std::vector<std::string_view>& components,
             const std::vector<std::string_view>& pattern) {
  return components.size() > pattern.size() &&
         std::equal(pattern.begin(), pattern.end(), components.begin(), [](auto wanted, auto has) {
           return wanted == "*" ? is_digits(has) : wanted == has;
         });
}

std::string_view module_of(std::string_view name,
                           const std::vector<std::vector<std::string_view>>& patterns,
                           const std::set<std::string_view>& blocks) {
  const auto components = components_of(name);
  for (const auto& pattern : patterns)
    if (matches(components, pattern)) return up_to(name, components[pattern.size() - 1]);
  for (const std::string_view component : components)
    if (is_digits(component) && blocks.contains(up_to(name, component)))
      return up_to(name, component);
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

}  // namespace

bool is_estimated_dtype(std::string_view dtype) noexcept {
  return find_dtype_size(dtype) != nullptr;
}

std::uint64_t num_parameters(const ModelInventory& model) {
  std::uint64_t total = 0;
  for (const ModelTensor& tensor : model.tensors) total += tensor.is_buffer ? 0 : tensor.numel;
  return total;
}

std::uint64_t num_elements(const ModelInventory& model) {
  std::uint64_t total = 0;
  for (const ModelTensor& tensor : model.tensors) total += tensor.numel;
  return total;
}

std::uint64_t largest_layer(const ModelInventory& model) {
  std::vector<std::vector<std::string_view>> patterns;
  for (const std::string& pattern : model.whole_modules) patterns.push_back(components_of(pattern));
  const auto blocks = blocks_with_attention(model);
  std::unordered_map<std::string_view, std::uint64_t> sizes;
  std::uint64_t largest = 0;
  for (const ModelTensor& tensor : model.tensors) {
    std::uint64_t& size = sizes[module_of(tensor.name, patterns, blocks)];
    size += tensor.numel;
    largest = std::max(largest, size);
  }
  return largest;
}

std::vector<MemoryRow> estimate_memory(const ModelInventory& model,
                                       const std::vector<std::string>& dtypes) {
  const auto total = static_cast<double>(num_elements(model));
  const auto largest = static_cast<double>(largest_layer(model));
  std::vector<MemoryRow> rows;
  for (const std::string& wanted : dtypes) {
    const DtypeSize& dtype = *find_dtype_size(wanted);
    MemoryRow row{.dtype = dtype.name,
                  .largest_layer = largest * dtype.bytes,
                  .total = total * dtype.bytes,
                  .training = std::nullopt};
    if (dtype.training) row.training = total * *dtype.training;
    rows.push_back(row);
  }
  return rows;
}

std::string readable_bytes(double bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"bytes", "KB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  const double rounded = std::round(bytes * 100) / 100;
  std::array<char, 64> text{};
  // The shortest form, as Python prints it.
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), rounded);
  std::string result(text.data(), end);
  if (unit > 0 && result.find('.') == std::string::npos) result += ".0";
  return result + " " + std::string(kUnits[unit]);
}

}  // namespace accel::launcher

// ModelBuilder: what the families of known models are written with: numbers of a config.json, and the tensors they make.
//
// Sizes remembers the first number that is missing or wrong; families need no checks of their own, and what they built
// is thrown away then. Tensors that are not saved count as the model has them: a whole number of 64 bits as two floats.
//
// Threads:  one at a time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint_tools/models/memory_estimate.h"
#include "runtime/printable.h"

namespace accel::launcher {

using nlohmann::json;
using Count = std::uint64_t;

// No dimension of a model is larger; products of three of them fit 64 bits.
inline constexpr Count kMostOfAnything = Count{1} << 20;
inline constexpr std::size_t kMostTensors = 200'000;

class Sizes {
 public:
  explicit Sizes(const json& config) : config_(config) {}

  // Of the first of the keys that is there.
  Count of(std::initializer_list<const char*> keys) {
    if (const auto value = find(keys)) return *value;
    refuse(std::string(*keys.begin()) + " is missing");
    return 1;
  }
  Count of(const char* key) { return of({key}); }
  Count of(std::initializer_list<const char*> keys, Count otherwise) {
    return find(keys).value_or(otherwise);
  }
  // What may be 0, and is when it is absent.
  Count of_or_none(const char* key) {
    const auto entry = config_.find(key);
    return entry != config_.end() && *entry == 0 ? 0 : of({key}, 0);
  }
  // Those of an object in it, which may be absent. Valid as long as these are.
  [[nodiscard]] Sizes inside(const char* key) const {
    static const json kNothing = json::object();
    const auto entry = config_.find(key);
    return Sizes(entry != config_.end() && entry->is_object() ? *entry : kNothing);
  }
  void take_fault(const std::string& key, const Sizes& inner) {
    if (!inner.fault().empty()) refuse(key + ": " + inner.fault());
  }
  bool flag(const char* key, bool otherwise) const {
    const auto entry = config_.find(key);
    return entry != config_.end() && entry->is_boolean() ? entry->get<bool>() : otherwise;
  }
  std::string text(const char* key) const {
    const auto entry = config_.find(key);
    return entry != config_.end() && entry->is_string() ? entry->get<std::string>() : "";
  }
  // Requires: `number` is at least 1. A list of so many numbers.
  std::vector<Count> list(const char* key, std::size_t number) {
    const auto entry = config_.find(key);
    const bool is_list = entry != config_.end() && entry->is_array() && entry->size() == number;
    if (!is_list)
      refuse(std::string(key) + " is no list of " + std::to_string(number) + " numbers");
    std::vector<Count> values(number, 1);
    for (std::size_t i = 0; is_list && i < number; ++i) values[i] = checked(key, (*entry)[i]);
    return values;
  }
  [[nodiscard]] std::size_t length(const char* key) const {
    const auto entry = config_.find(key);
    return entry != config_.end() && entry->is_array() ? entry->size() : 0;
  }
  [[nodiscard]] const std::string& fault() const { return fault_; }
  void refuse(const std::string& fault) {
    if (fault_.empty()) fault_ = fault;
  }

 private:
  std::optional<Count> find(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      const auto entry = config_.find(key);
      if (entry == config_.end() || entry->is_null()) continue;
      return checked(key, *entry);
    }
    return std::nullopt;
  }

  Count checked(const char* key, const json& value) {
    if (value.is_number_integer() && value.get<std::int64_t>() > 0 &&
        value.get<Count>() <= kMostOfAnything)
      return value.get<Count>();
    refuse(std::string(key) + " is " + printable(value.dump().substr(0, 40)) +
           ", expected a whole number from 1 to " + std::to_string(kMostOfAnything));
    return 1;
  }

  const json& config_;
  std::string fault_;
};

// Names of what is inside of a block begin with it.
class Builder {
 public:
  explicit Builder(ModelInventory& model) : model_(model) {}

  void tensor(const std::string& name, Count numel) {
    model_.tensors.push_back({at_ + name, numel});
  }
  void buffer(const std::string& name, Count numel) {
    model_.tensors.push_back({at_ + name, numel, true});
  }
  void table(const std::string& name, Count rows, Count width) {
    tensor(name + ".weight", rows * width);
  }
  void linear(const std::string& name, Count in, Count out, bool has_bias = true) {
    tensor(name + ".weight", in * out);
    if (has_bias) tensor(name + ".bias", out);
  }
  void layer_norm(const std::string& name, Count width, bool has_bias = true) {
    tensor(name + ".weight", width);
    if (has_bias) tensor(name + ".bias", width);
  }
  void whole_numbers(const std::string& name, Count number) { buffer(name, 2 * number); }
  void convolution(const std::string& name, Count in, Count out, Count side) {
    tensor(name + ".weight", in * out * side * side);
  }
  void batch_norm(const std::string& name, Count width) {
    layer_norm(name, width);
    buffer(name + ".running_mean", width);
    buffer(name + ".running_var", width);
    whole_numbers(name + ".num_batches_tracked", 1);
  }
  template <typename Body>
  void blocks(const std::string& name, Count number, const Body& body) {
    const std::string before = at_;
    for (Count i = 0; i < number && model_.tensors.size() < kMostTensors; ++i) {
      at_ = before + name + "." + std::to_string(i) + ".";
      body();
    }
    at_ = before;
  }
  void keep_whole(std::string module) { model_.whole_modules.push_back(std::move(module)); }

 private:
  ModelInventory& model_;
  std::string at_;
};

}  // namespace accel::launcher

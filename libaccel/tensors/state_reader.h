// StateReader: takes typed values out of a StateDict and says which one is missing or of another
// kind.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <accel/error.h>
#include <accel/state_dict.h>

namespace accel {

// Borrows the state. Every member throws kCheckpointMismatch naming `owner` and the key.
class StateReader {
 public:
  StateReader(std::string owner, const StateDict& state)
      : owner_(std::move(owner)), state_(state) {}

  // An integer is accepted too: JSON writers drop the ".0" of whole numbers.
  [[nodiscard]] double number(const std::string& key) const {
    const StateValue& value = find(key);
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
    return get<double>(key, value, "a number");
  }

  [[nodiscard]] std::int64_t integer(const std::string& key) const {
    return get<std::int64_t>(key, find(key), "an integer");
  }

  [[nodiscard]] bool has(const std::string& key) const { return state_.values.contains(key); }

  [[nodiscard]] const at::Tensor& tensor(const std::string& key) const {
    const auto found = state_.tensors.find(key);
    if (found != state_.tensors.end()) return found->second;
    throw Error(ErrorCode::kCheckpointMismatch,
                "the state of " + owner_ + " has no tensor '" + key + "'");
  }

  [[nodiscard]] std::vector<double> numbers(const std::string& key) const {
    const StateValue& value = find(key);
    if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&value)) {
      return {whole->begin(), whole->end()};
    }
    return get<std::vector<double>>(key, value, "a list of numbers");
  }

 private:
  [[nodiscard]] const StateValue& find(const std::string& key) const {
    const auto found = state_.values.find(key);
    if (found == state_.values.end()) {
      throw Error(ErrorCode::kCheckpointMismatch,
                  "the state of " + owner_ + " has no '" + key + "'");
    }
    return found->second;
  }

  template <typename T>
  [[nodiscard]] const T& get(const std::string& key,
                             const StateValue& value,
                             const char* expected) const {
    if (const T* typed = std::get_if<T>(&value)) return *typed;
    throw Error(ErrorCode::kCheckpointMismatch,
                "'" + key + "' in the state of " + owner_ + " is not " + expected);
  }

  std::string owner_;
  const StateDict& state_;
};

}  // namespace accel

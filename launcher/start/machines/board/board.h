// Board: the values that an exchange with the store has read, by key.
//
// Threads:  a plain value.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "runtime/supervisor/store/store_client.h"

namespace accel::launcher {

class Board {
 public:
  Board() = default;
  Board(const supervisor::StoreExchange& wanted, const supervisor::StoreAnswer& answer)
      : count_(answer.count) {
    for (std::size_t i = 0; i < wanted.reads.size() && i < answer.values.size(); ++i)
      values_[wanted.reads[i]] = answer.values[i];
  }

  // Empty when there is nothing, or it was not read.
  [[nodiscard]] const std::string& at(std::string_view key) const {
    static const std::string kNothing;
    const auto found = values_.find(key);
    return found == values_.end() ? kNothing : found->second;
  }
  [[nodiscard]] bool has(std::string_view key) const { return !at(key).empty(); }

  // Of the counter that was raised.
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  std::map<std::string, std::string, std::less<>> values_;
  std::int64_t count_ = 0;
};

}  // namespace accel::launcher

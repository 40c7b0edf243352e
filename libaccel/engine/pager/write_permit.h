// WritePermit: whether operators may write to some parameters now, and what those are told that may not.
//
// paged_storage.h asks it before each operator that writes to one, or to a view of one, as the operator's schema
// says. Code that writes by an address does not come by: where the pages can only be read, that ends with the signal and the
// lines of guard_memory.h.
//
// Threads:  any.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include <accel/error.h>

namespace accel::pager {

class WritePermit {
 public:
  enum class First { kGiven, kWithdrawn };
  // why: what follows "aten::mul_ would write to the parameter NAME".
  WritePermit(First first, std::string why, std::string remedy)
      : is_given_(first == First::kGiven), why_(std::move(why)), remedy_(std::move(remedy)) {}

  void give() noexcept { is_given_.store(true, std::memory_order_relaxed); }
  void withdraw() noexcept { is_given_.store(false, std::memory_order_relaxed); }
  [[nodiscard]] bool is_given() const noexcept { return is_given_.load(std::memory_order_relaxed); }

  [[nodiscard]] Error refusal(std::string_view operation, std::string_view parameter) const {
    return {
        ErrorCode::kUnsupported,
        std::string(operation) + " would write to the parameter " + std::string(parameter) + why_,
        remedy_};
  }

 private:
  std::atomic<bool> is_given_;
  std::string why_;
  std::string remedy_;
};

}  // namespace accel::pager

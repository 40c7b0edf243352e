// Result: a value or an Error, with the names of C++23's std::expected.
//
// The parts without LibTorch return Result and do not throw; libaccel throws accel::Error. or_throw() and
// to_result() convert between them.
#pragma once

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <accel/error.h>

namespace accel {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit as in std::expected
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  // Requires has_value().
  T& operator*() & { return *std::get_if<0>(&state_); }
  const T& operator*() const& { return *std::get_if<0>(&state_); }
  T&& operator*() && { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }

  // Throws the Error when there is no value.
  T& value() & { return has_value() ? **this : throw error(); }
  T&& value() && { return has_value() ? std::move(**this) : throw error(); }

  // Requires !has_value().
  Error& error() & { return *std::get_if<1>(&state_); }
  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

// For a function without a value.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  [[nodiscard]] bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  void value() const {
    if (error_) throw *error_;
  }
  // Requires: !has_value().
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

// Returns the value or throws the Error.
template <typename T>
T or_throw(Result<T> result) {
  if (!result) throw std::move(result).error();
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// Runs fn() and turns its exception into an Error (kInternal unless it is an accel::Error).
template <typename F>
auto to_result(F&& fn) -> Result<std::invoke_result_t<F>> {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      std::forward<F>(fn)();
      return {};
    } else {
      return std::forward<F>(fn)();
    }
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
}

}  // namespace accel

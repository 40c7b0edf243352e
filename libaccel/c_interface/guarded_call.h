// GuardedCall: the edge of each function of accel/c/accel.h: what C++ throws becomes a code, and words for accel_last_error().
//
// Threads:  any; the words are kept for each thread.
#pragma once

#include <exception>
#include <string>

#include <accel/c/accel.h>
#include <accel/error.h>

namespace accel::c_interface {

// The number of a code in C.
constexpr int code_of(ErrorCode code) {
  return static_cast<int>(code) + 1;
}

// Keeps the words of the exception that is being handled and returns its code. `function` is the one that failed.
int note_failure(const char* function) noexcept;

// Calls act(): ACCEL_OK, or the code of what it throws.
template <typename F>
int guarded(const char* function, F&& act) noexcept {
  try {
    act();
    return ACCEL_OK;
  } catch (...) {
    return note_failure(function);
  }
}

// What act() returns; `otherwise` when it throws.
template <typename Value, typename F>
Value guarded_value(const char* function, Value otherwise, F&& act) noexcept {
  try {
    return act();
  } catch (...) {
    (void)note_failure(function);
    return otherwise;
  }
}

// The object behind a pointer that the program passed; `&given(path, "path")` is a text again. Throws kInvalidArgument naming it when that is
// NULL.
template <typename T>
T& given(T* pointer, const char* name) {
  if (pointer != nullptr) return *pointer;
  throw Error(
      ErrorCode::kInvalidArgument,
      std::string(name) + " is NULL",
      "pass what the function that makes it has given; a handle is NULL before, and after its end");
}

}  // namespace accel::c_interface

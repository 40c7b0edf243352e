// ErrorOf: the error that something must throw.
#pragma once

#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::test {

// That nothing was thrown fails the test, and gives an error without a message.
template <typename F>
Error error_of(F act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

}  // namespace accel::test

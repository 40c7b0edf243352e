// check_number(): options that are numbers, refused by their names where they make no sense. A comparison with NaN is false, so say
// what fits, not what does not.
//
// Threads:  pure functions.
#pragma once

#include <string>

#include <accel/error.h>

namespace accel {

// Throws kInvalidArgument unless the value fits.
inline void check_number(bool fits, const char* name, double value, const char* expected) {
  if (fits) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + " is " + std::to_string(value) + ", expected " + expected);
}

}  // namespace accel

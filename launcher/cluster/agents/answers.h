// Answers: how the commands of `accel` show what an agent answered.
//
// Threads:  functions without state.
#pragma once

#include <google/protobuf/message.h>

#include <accel/error.h>

namespace accel::cluster {

inline constexpr const char* kProgram = "accel";

// Says what went wrong; gives the exit status.
int fail(const Error& error);

// With the names of the protocol, on one line or several.
void print_json(const google::protobuf::Message& message);

}  // namespace accel::cluster

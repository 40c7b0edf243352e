// JobReport: the text of a job that says why it failed, made of what its shim says.
//
// A shim runs as the job's user, and may say anything as often as it likes. The report is part of the job's record and of every
// answer about it: bytes that are no UTF-8 would make all of those unreadable (proto3 strings), and without a bound they would
// grow for ever.
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "accel/v1/control.pb.h"

namespace accel::agent {

inline constexpr std::size_t kMostReportBytes = 64 * 1024;

// Adds `text`, made printable(), and a newline unless it ends with one. Of what would make the report longer than
// kMostReportBytes nothing is added but one line that says so.
void add_to_report(v1::Job& job, std::string_view text);

}  // namespace accel::agent

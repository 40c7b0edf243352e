// JointCheck: what one rank refuses, all ranks refuse, at once and for the reason of that rank.
#pragma once

#include <functional>
#include <string_view>

namespace accel {

class ProcessGroup;

// Runs `check` and tells the others how it ended. Returns where it threw on no rank. Else throws on all: its own Error on
// a rank that has one; on the others one of the same code that names the first such rank, its message and its remedy
// (together cut to 1 KiB). Another std::exception passes through on its rank, and is kInternal on the others. What is none
// passes through on its rank alone.
// Requires: every rank calls it. Cost: one message of 1 KiB.
void check_together(const std::function<void()>& check,
                    ProcessGroup& group,
                    std::string_view operation);

}  // namespace accel

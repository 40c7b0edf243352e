// FlagSpelling: texts about flags in the words of the program that prints them.
//
// Most errors are made where nobody knows how the launcher was started (runtime, mpi, cluster), and write
// flags as accel-launch does. What is printed under accel-torchrun passes here, once.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>

#include <accel/error.h>

#include "launcher/text/program.h"

namespace accel::launcher {

// `text` with each flag of the table as spelled() writes it; under kLaunch unchanged. Words that are no
// flags of ours stay, and so does --num_processes: it counts the processes of all machines, which torchrun
// has no flag for. "--main_process_port (--master-port)" becomes "--master-port".
[[nodiscard]] std::string respelled(std::string_view text, Program program);

// error.render() of it. What others said (details, but for further faults) stays as it is.
// program: "accel-torchrun", or any other name.
[[nodiscard]] std::string rendered(const Error& error, const std::string& program);

// rendered(), to stderr. Returns the exit status.
int print_failure(const std::string& program, const Error& error);

}  // namespace accel::launcher

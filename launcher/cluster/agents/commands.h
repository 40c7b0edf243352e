// Commands: those of `accel` that speak to an agent: run, status, logs, stop, signal, scale, drain, undrain, diagnose,
// ledger, watch, top.
//
// Threads:  the calling one, which waits for each answer.
#pragma once

namespace accel::cluster {

// `argv` as of a program: argv[1] is the command. Gives the exit status.
int run_agent_command(int argc, const char* const* argv);

}  // namespace accel::cluster

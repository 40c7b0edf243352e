// Shim: the process between an owner and its workers; accel-shim's main().
//
// It is the parent and the subreaper of the workers, so that neither the owner's death nor a
// worker's can leave a process behind: when the owner goes, the shim sees it and sweeps; when the
// shim is killed, the workers die with it (PR_SET_PDEATHSIG) and what they had started falls to the
// owner. A shim that holds (OwnerPolicy) outlives its owner: the workers go on, and the next owner
// takes it over through the OwnerDoor; when none comes in time everything is killed.
//
// Threads:  the supervisor's thread is the main thread; log writers have their own.
#pragma once

namespace accel::supervisor {

// argv: accel-shim SOCKET SPEC OWNER [FORKS SERVER]
//   SOCKET  number of the inherited end of the SOCK_SEQPACKET pair
//   SPEC    number of an inherited memfd with the JobSpec as JSON
//   OWNER   pid of the owner, which is the parent
//   FORKS   number of an inherited socket to a fork server (fork_server.h), which makes the workers
//   SERVER  pid of the fork server, a child of this process
// Returns the exit status: 0 when an outcome was reached, 70 and a line on stderr when there was no
// job to run.
int run_shim(int argc, char** argv);

}  // namespace accel::supervisor

// MainSeat: who is machine 0, when the store that this launcher wanted to open cannot be opened.
//
// Threads:  pure functions.
#pragma once

#include <accel/error.h>

namespace accel::launcher {

enum class MainSeat {
  kTaken,      // another launcher has it; we are one of the other machines
  kUnclear,    // the address is none of ours: it is translated, or another machine's
  kContested,  // the port is held here: by a launcher of this job our rank was given twice
  kOurs,       // and cannot be taken: the launch fails
};

// why           of the store: kInvalidArgument for an address that no interface has, kPortInUse, ...
// draws_rank    no machine rank was given: whoever can listen is machine 0
// is_translated we listen on all addresses already
// is_first      generation: in a later one the store had been ours
[[nodiscard]] MainSeat seat_without_store(ErrorCode why,
                                          bool draws_rank,
                                          bool is_translated,
                                          bool is_first);

}  // namespace accel::launcher

// Agreement: whether the cards of several machines make one job.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accel/error.h>

#include "launcher/start/machines/board/records.h"
#include "launcher/text/program.h"

namespace accel::launcher {

// `program`: whose words an error uses. A number of the processes of all machines is accelerate's
// --num_processes under each name: torchrun counts those of one.

// What makes a job impossible by the card of machine 0 alone: processes that do not divide over the
// machines (kInvalidArgument).
[[nodiscard]] std::optional<Error> find_fault(const MachineCard& main);

// What `card` says otherwise than machine 0: version (kProtocol), run id, number of machines, of
// processes or of its share of them, device (kInvalidArgument). The message names both.
[[nodiscard]] std::optional<Error> find_disagreement(const MachineCard& main,
                                                     const MachineCard& card,
                                                     Program program = Program::kLaunch);

// What the cards of all machines, by rank, say otherwise among themselves: numbers of processes that
// machine 0 did not give.
[[nodiscard]] std::optional<Error> find_disagreement(const std::vector<MachineCard>& cards,
                                                     Program program = Program::kLaunch);

// The machine rank of `card` is claimed by `holder` already. `port_flag`: MachinesSettings::port_flag().
[[nodiscard]] Error rank_is_taken(const MachineCard& holder,
                                  const MachineCard& card,
                                  Program program,
                                  const std::string& port_flag);

// The end of a job that `why` makes impossible; `machine`: where.
[[nodiscard]] Verdict failed_verdict(const Error& why, int machine);
// The error of such an end, for the launcher that reads it.
[[nodiscard]] Error error_of(const Verdict& verdict);

// Requires: the cards of all machines by rank, at least one.
[[nodiscard]] JobPlan make_plan(const std::vector<MachineCard>& cards, int restart_count);

}  // namespace accel::launcher

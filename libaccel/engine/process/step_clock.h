// StepClock: where the time of the thread that trains goes (accel/detail/step_span.h), told to the supervisor with each beat.
//
// Measured only where ACCEL_STEP_TIMES is 1 and a supervisor is there to be told.
//
// Threads:  start() and publish() from the thread that trains; only its spans count.
// Cost:     published in 20 ns; nothing where nothing is measured.
#pragma once

#include <accel/env_contract.h>

namespace accel::detail {

// This thread trains from here on.
void start_step_clock(const EnvLookup& env);

// Tells where the time went until now. Begins to count at the first call; is_step: one more step is done.
void publish_step_times(bool is_step) noexcept;

}  // namespace accel::detail

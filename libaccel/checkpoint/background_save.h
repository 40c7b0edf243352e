// BackgroundSave: what other saves and loads must know of one that is under way; see accel/async_save.h.
#pragma once

namespace accel::checkpoint {

enum class Earlier {
  kThrowItsError,  // when nobody has asked for it yet
  kLeaveItsError,
};

// Returns when no save is under way in this process. From the thread that trains.
void wait_for_background_save(Earlier earlier);

}  // namespace accel::checkpoint

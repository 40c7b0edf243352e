// StoreRanks: the exchange of a save that goes on in the background, through the store of the process group.
//
// The group itself belongs to the thread that trains: its collectives must come in one order on all ranks. So a thread that
// writes a checkpoint has a connection to the store for itself, and its rounds have names of their own.
//
// Threads:  one object, one thread.
// Cost:     a round of decide() is one report to rank 0, which asks for all of them at once, and one answer, for which each of
//           the others asks; all ask after 10 ms, then seldomer, up to every 250 ms. In all_gather() every rank reads every
//           report: W * W of them. And that of store_beat.h.
#pragma once

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/ranks/store_beat.h"

namespace c10d {
class Store;
}

namespace accel::checkpoint {

// Over the store of the PartialState's group; a process alone when there is none. Rounds are named after `name`, which is the
// same on all ranks and of no other exchange. all_gather() throws kPeerLost when a rank has not spoken within `patience`,
// within a second when that rank is of this node and dead, after pulse.longest_silence when it is of another node and dead or
// cut off, when `stop` is requested; kStoreUnreachable when the store is gone. Call it from the thread that trains.
[[nodiscard]] std::unique_ptr<RankExchange> store_ranks(const std::string& name,
                                                        std::chrono::milliseconds patience,
                                                        std::stop_token stop,
                                                        const Pulse& pulse = {});

// The same over a store that is given. `name` alone tells its keys.
struct StorePlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
};
[[nodiscard]] std::unique_ptr<RankExchange> store_ranks(const StorePlace& place,
                                                        c10::intrusive_ptr<c10d::Store> store,
                                                        const std::string& name,
                                                        std::chrono::milliseconds patience,
                                                        std::stop_token stop,
                                                        const Pulse& pulse = {});

}  // namespace accel::checkpoint

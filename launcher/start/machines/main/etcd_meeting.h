// EtcdMeeting: which launcher is machine 0 of a job, and where, by one key in etcd.
//
// What stands at the key decides, looked at again and again until the limit:
//
//   at the key                                   next
//   -------------------------------------------  -------------------------------------------------------
//   our own place                                we are machine 0
//   a place that takes connections               its launcher is machine 0, and we join there
//   a place that does not                        again: its launcher opens the store within milliseconds,
//                                                and one that died loses the key with its lease
//   something else                               an error
//   a job of the other kind (--nnodes MIN:MAX)   an error
//   etcd does not answer                         again
//
// All the rest (who takes part, with which ranks) the launchers agree on through machine 0's store.
//
// Threads:  a function without state; blocks in its effects.
// Source:   docs/internals/rendezvous.md "Without a daemon"; tests/unit/launcher/machines/etcd_meeting_test.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <accel/result.h>

#include "launcher/cluster_entry/etcd_seat.h"
#include "launcher/start/machines/main/main_place.h"
#include "launcher/text/program.h"
#include "runtime/clock.h"

namespace accel::launcher {

struct EtcdMeeting {
  MainPlace main;
  bool is_ours = false;  // this launcher is machine 0
  int signal = 0;        // not 0: the user ended the meeting by it
};

struct MeetingEffects {
  std::function<TimePoint()> now;
  std::function<int(Duration)> pause;  // gives the signal that ended it, or 0
  std::function<void(const std::string&)> say;
  Program program = Program::kLaunch;  // whose words messages use
};

// Errors  kEtcdUnreachable, kStoreUnreachable: etcd, or machine 0, did not answer within `limit`; kProtocol:
//         what stands in etcd is no place; kInvalidArgument: a job whose nodes meet otherwise; others of EtcdSeat::take() at once.
[[nodiscard]] Result<EtcdMeeting> meet_by_etcd(EtcdSeat& seat,
                                               const MainPlace& own,
                                               Duration limit,
                                               const MeetingEffects& effects);

// Why machine 0 cannot wait for the others any more (kCoordinatorLost): another launcher has its seat, where those
// that come now would join.
[[nodiscard]] std::optional<Error> find_lost_seat(const EtcdSeat& seat);

}  // namespace accel::launcher

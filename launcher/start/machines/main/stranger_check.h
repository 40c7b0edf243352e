// StrangerCheck: whether what listens where machine 0 should be is the store of a launcher at all.
//
// Another program may have the port: it speaks another protocol, closes what it does not know, or
// says nothing; and the store of another launcher (torchrun) answers, but nobody writes a card into it.
//
//   seen                                                     sign
//   -------------------------------------------------------  ------------------
//   an answer that is none of the protocol                   kOtherProtocol
//   closed without an answer, three times in a row           kCloses
//   no answer within the patience                            kSilent
//   answers for as long, none with a card of machine 0       kNoLauncher
//   a card of machine 0                                      none, for good
//   nobody listens any more                                  it begins anew
//
// Threads:  one at a time.
// Source:   tests/unit/launcher/machines/stranger_check_test.cc.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <accel/error.h>

#include "runtime/clock.h"

namespace accel::launcher {

enum class StrangerSign { kOtherProtocol, kCloses, kSilent, kNoLauncher };

// "it speaks another protocol".
[[nodiscard]] std::string describe(StrangerSign sign);

class StrangerCheck {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(5);
  // A launcher writes its card in milliseconds.
  explicit StrangerCheck(Duration patience = kPatience) : patience_(patience) {}

  void came_up(TimePoint now);  // a connection was made
  void broke(ErrorCode why);    // it ended, or none could be made
  // has_card: machine 0 has written who it is.
  void answered(bool has_card);
  // We were stopped so long ourselves.
  void pardon(Duration pause);

  [[nodiscard]] std::optional<StrangerSign> sign(TimePoint now) const;

 private:
  Duration patience_;
  bool is_up_ = false;
  bool is_launcher_ = false;
  bool has_answered_ = false;
  bool is_other_protocol_ = false;
  int num_closed_ = 0;
  std::optional<TimePoint> up_since_;  // the first connection
};

}  // namespace accel::launcher

#include "launcher/start/machines/main/stranger_check.h"

namespace accel::launcher {
namespace {

constexpr int kMostClosed = 3;

}  // namespace

std::string describe(StrangerSign sign) {
  switch (sign) {
    case StrangerSign::kOtherProtocol:
      return "it speaks another protocol";
    case StrangerSign::kCloses:
      return "it closes each connection without an answer";
    case StrangerSign::kSilent:
      return "it accepts connections and answers nothing";
    case StrangerSign::kNoLauncher:
      break;
  }
  return "it is a store, but no launcher of accel writes into it";
}

void StrangerCheck::came_up(TimePoint now) {
  is_up_ = true;
  if (!up_since_) up_since_ = now;
}

void StrangerCheck::broke(ErrorCode why) {
  if (why == ErrorCode::kProtocol) {
    is_other_protocol_ = true;
  } else if (is_up_) {
    ++num_closed_;
  } else {
    *this = StrangerCheck(patience_);
  }
  is_up_ = false;
}

void StrangerCheck::answered(bool has_card) {
  num_closed_ = 0;
  has_answered_ = true;
  is_launcher_ = is_launcher_ || has_card;
}

void StrangerCheck::pardon(Duration pause) {
  if (up_since_) *up_since_ += pause;
}

std::optional<StrangerSign> StrangerCheck::sign(TimePoint now) const {
  if (is_launcher_) return std::nullopt;
  if (is_other_protocol_) return StrangerSign::kOtherProtocol;
  if (num_closed_ >= kMostClosed) return StrangerSign::kCloses;
  if (!up_since_ || now - *up_since_ < patience_) return std::nullopt;
  return has_answered_ ? StrangerSign::kNoLauncher : StrangerSign::kSilent;
}

}  // namespace accel::launcher

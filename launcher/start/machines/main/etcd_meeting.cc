#include "launcher/start/machines/main/etcd_meeting.h"

#include <chrono>
#include <utility>

#include "launcher/start/machines/board/timing.h"
#include "runtime/text/seconds_text.h"

namespace accel::launcher {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPause = 250ms;
constexpr Duration kSayAsking = 2s;

// One look: the meeting, or why there is none yet.
struct Look {
  std::optional<EtcdMeeting> meeting;
  std::optional<Error> trouble;
  bool is_final = false;  // of the trouble
};

// With the remedy of a launch, not that of an agent.
Error for_launch(const Error& why, Program program) {
  Error error(why.code(),
              why.message(),
              "check " + spelled("rdzv_endpoint", program) +
                  ", and that etcd runs there (`etcdctl endpoint health`); with TLS, " +
                  spelled("rdzv_conf", program) + " protocol=https,cacert=FILE");
  for (const auto& [label, text] : why.details()) error.with_detail(label, text);
  return error;
}

Error other_kind(const MainPlace& main, Program program) {
  const std::string flag = spelled("nnodes", program);
  return Error(ErrorCode::kInvalidArgument,
               "machine 0 is " + main.describe() + " by etcd, where " + flag +
                   (main.has_coordinator ? " is a range, and here it is one number"
                                         : " is one number, and here it is a range"),
               "give the same " + flag + " on every machine, and each job a " +
                   spelled("rdzv_id", program) + " of its own");
}

Look look(EtcdSeat& seat, const MainPlace& own, Program program) {
  const auto text = seat.take(to_text(own));
  if (!text) {
    const bool is_away = text.error().code() == ErrorCode::kEtcdUnreachable;
    return {{}, is_away ? for_launch(text.error(), program) : text.error(), !is_away};
  }
  const auto main = main_place_from(*text);
  if (!main) return {{}, main.error(), true};
  if (main->id == own.id) return {EtcdMeeting{.main = own, .is_ours = true}, {}};
  if (main->has_coordinator != own.has_coordinator) return {{}, other_kind(*main, program), true};
  const auto reached = seat.reach(main->address, main->port);
  if (reached) return {EtcdMeeting{.main = *main}, {}};
  return {{},
          Error(ErrorCode::kStoreUnreachable,
                "machine 0 is " + main->describe() + " by etcd, but " + reached.error().message(),
                "give " + spelled("local_addr", program) +
                    " on that machine, an address that all others reach, and see that no firewall "
                    "closes the port (" +
                    spelled("main_process_port", program) + " chooses one)")};
}

}  // namespace

Result<EtcdMeeting> meet_by_etcd(EtcdSeat& seat,
                                 const MainPlace& own,
                                 Duration limit,
                                 const MeetingEffects& effects) {
  const TimePoint began = effects.now();
  bool has_said = false;
  while (true) {
    Look seen = look(seat, own, effects.program);
    if (seen.meeting) return *std::move(seen.meeting);
    const Duration waited = effects.now() - began;
    if (seen.is_final) return *std::move(seen.trouble);
    if (waited >= limit)
      return std::move(*seen.trouble).with_detail("waited", "for " + seconds_text(waited));
    if (waited >= kSayAsking && !std::exchange(has_said, true))
      effects.say(seen.trouble->message() + "; asking again, for at most " + seconds_text(limit));
    if (const int signal = effects.pause(kPause); signal != 0)
      return EtcdMeeting{.main = own, .is_ours = false, .signal = signal};
  }
}

std::optional<Error> find_lost_seat(const EtcdSeat& seat) {
  const std::string successor = seat.successor();
  if (successor.empty()) return std::nullopt;
  const auto other = main_place_from(successor);
  return Error(ErrorCode::kCoordinatorLost,
               "etcd did not hear from this launcher, and made " +
                   (other ? other->describe() : std::string("another one")) + " machine 0",
               "start the job again on this machine");
}

}  // namespace accel::launcher

#include "libaccel/engine/collectives/store_round.h"

#include <algorithm>
#include <cstdint>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/first_line.h"
#include "runtime/text/seconds_text.h"

namespace accel {
namespace {

constexpr std::string_view kNo = "no ";

std::string key_of(const StoreRound& round, int rank) {
  return std::string(round.key) + "/" + std::to_string(rank);
}

std::string missing_ranks(c10d::Store& store, const StoreRound& round, int world_size) {
  std::string missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (store.check({key_of(round, rank)})) continue;
    if (!missing.empty()) missing += ", ";
    missing += std::to_string(rank);
  }
  return missing;
}

// As store.wait(), with a look at the others between the questions, which come less often the longer it takes.
void wait_and_look(c10d::Store& store,
                   const std::vector<std::string>& keys,
                   std::chrono::milliseconds timeout,
                   const std::function<void()>& look) {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = 1ms; !store.check(keys); pause = std::min(2 * pause, 64ms)) {
    look();
    if (std::chrono::steady_clock::now() >= deadline)
      C10_THROW_ERROR(DistStoreError, "not all keys were set in time");
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::string joining_text(int rank) {
  return "joining the process group as rank " + std::to_string(rank);
}

std::string refusal_text(std::string_view why) {
  return std::string(kNo) + std::string(why);
}

std::optional<std::string> reason_of_refusal(std::string_view said) {
  if (!said.starts_with(kNo)) return std::nullopt;
  return printable(said.substr(kNo.size()));
}

void say(c10d::Store& store, const StoreRound& round, int rank, const std::string& mine) {
  store.set(key_of(round, rank), std::vector<std::uint8_t>(mine.begin(), mine.end()));
}

std::vector<std::string> exchange(c10d::Store& store,
                                  const StoreRound& round,
                                  const StoreMember& member,
                                  const std::string& mine,
                                  const std::function<void()>& look) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < member.world_size; ++rank) keys.push_back(key_of(round, rank));
  std::vector<std::string> said;
  bool is_late = false;
  std::string missing;
  try {
    say(store, round, member.rank, mine);
    try {
      if (look)
        wait_and_look(store, keys, member.timeout, look);
      else
        store.wait(keys, member.timeout);
      for (const auto& value : store.multiGet(keys)) said.emplace_back(value.begin(), value.end());
    } catch (const c10::DistStoreError&) {
      is_late = true;
      missing = missing_ranks(store, round, member.world_size);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& cause) {
    throw Error(ErrorCode::kStoreUnreachable,
                "lost the store at " + member.endpoint + " while waiting for the other ranks to " +
                    std::string(round.what_is_missing),
                "see why the process that hosts it ended")
        .with_detail("cause", first_line(cause.what()))
        .while_doing(joining_text(member.rank));
  }
  if (!is_late) return said;
  throw Error(ErrorCode::kStoreTimeout,
              "of " + std::to_string(member.world_size) + " ranks these did not " +
                  std::string(round.what_is_missing) + " at " + member.endpoint + " within " +
                  seconds_text(member.timeout) + ": " + missing)
      .while_doing(joining_text(member.rank));
}

}  // namespace accel

// StoreRound: every rank says something through the store, and hears what all others have said.
//
// It takes one round: a rank sets its key and waits for those of all. Whoever did not come is named.
//
// Threads:  as the store's: any.
// Cost:     two or three trips to the store, and size() values.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

namespace accel {

// One of the things that ranks tell each other; a round happens once in a store.
struct StoreRound {
  std::string_view key;
  std::string_view what_is_missing;  // "these did not ..."
};

struct StoreMember {
  int rank = 0;
  int world_size = 1;
  std::string endpoint;  // of the store, for messages
  std::chrono::milliseconds timeout{300'000};
};

// A rank that cannot take part answers still, so that nobody waits for it: "no <why>". As gather_results() of agreement.h, in the
// words of the store's protocol.
[[nodiscard]] std::string refusal_text(std::string_view why);
// Why it cannot, as it may be printed; nothing when it said something else.
[[nodiscard]] std::optional<std::string> reason_of_refusal(std::string_view said);

// Says `mine`, without waiting for anybody. Throws what the store throws.
void say(c10d::Store& store, const StoreRound& round, int rank, const std::string& mine);

// Says `mine` and returns what all have said, by rank. Throws kStoreTimeout: names the ranks that did not come;
// kStoreUnreachable: the store is gone; and what `look` throws, which is called now and then while others are late.
[[nodiscard]] std::vector<std::string> exchange(c10d::Store& store,
                                                const StoreRound& round,
                                                const StoreMember& member,
                                                const std::string& mine,
                                                const std::function<void()>& look = {});

// What a rank does meanwhile, for Error::while_doing().
[[nodiscard]] std::string joining_text(int rank);

}  // namespace accel

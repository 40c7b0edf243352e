// StoreTable: what the store knows: keys, queues, and who waits for what. No sockets, no clock.
//
// A WAIT counts a key as arrived when it is there as the WAIT comes, or is set at any time after
// (as c10d's own server does); its one reply byte goes out when all have arrived. Waiters are
// indexed by key, so a SET costs what its own waiters cost. A queue that holds elements counts as a
// present key.
//
// Threads:  one thread.
// Cost:     a request costs the bytes it carries; SET and ADD add O(log W) for each of the key's W
//           waiters.
// Source:   store_protocol.h has the table of requests; tests/unit/supervisor/store_table_test.cc;
//           tests/fuzz/fuzz_store.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <accel/result.h>

#include "runtime/supervisor/store/store_protocol.h"

namespace accel::supervisor {

// What the table may hold; a request that would exceed it is refused as a whole.
struct StoreLimits {
  std::size_t max_keys = 1'000'000;
  std::size_t max_held_bytes = 256u << 20;  // keys, values, queue elements and keys waited for
};

using StoreClientId = std::uint64_t;

// Where replies go. Called while apply() runs; must not call back into the table.
class StoreOutbox {
 public:
  virtual ~StoreOutbox() = default;
  virtual void send(StoreClientId client, std::string_view bytes) = 0;
};

class StoreTable {
 public:
  StoreTable(StoreLimits limits, StoreOutbox& outbox);

  // Carries out one request; replies, its own and those of clients it wakes, go to the outbox.
  //
  // Errors  kStoreLimit when the table or a reply would become too large, kProtocol for a request
  //         that makes no sense here (ADD on a value that is no number, a second WAIT while one is
  //         pending). Nothing was changed then, and the caller disconnects the client.
  [[nodiscard]] Result<void> apply(StoreClientId client, const StoreRequest& request);

  // Drops what the client waits for. What it stored stays.
  void forget(StoreClientId client);

  [[nodiscard]] std::size_t num_keys() const noexcept { return values_.size(); }
  [[nodiscard]] std::size_t num_queues() const noexcept { return queues_.size(); }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }
  [[nodiscard]] std::size_t num_waits() const noexcept { return waits_.size(); }

 private:
  // Seeded, so that a client cannot choose keys that collide. Finds by string_view.
  struct KeyHash {
    using is_transparent = void;
    std::uint64_t seed;
    std::size_t operator()(std::string_view key) const noexcept;
  };
  template <typename T>
  using KeyMap = std::unordered_map<std::string, T, KeyHash, std::equal_to<>>;

  using WaitId = std::uint64_t;  // grows, so that the order of ids is the order of arrival
  struct Wait {
    StoreClientId client = 0;
    std::vector<std::string> missing;  // keys that had not arrived when the WAIT came
    std::size_t num_missing = 0;       // of those, how many still have not
    std::size_t held_bytes = 0;        // charged for it
  };

  Result<void> set(std::string_view key, std::string_view value);
  Result<void> compare_set(StoreClientId client, const StoreRequest& request);
  Result<void> add(StoreClientId client, std::string_view key, std::int64_t delta);
  Result<void> append(std::string_view key, std::string_view bytes);
  Result<void> multi_set(const StoreRequest& request);
  Result<void> multi_get(StoreClientId client, const StoreRequest& request);
  Result<void> list_keys(StoreClientId client);
  [[nodiscard]] std::int64_t delete_key(std::string_view key);

  Result<void> queue_push(std::string_view key, std::string_view element);
  void queue_pop(StoreClientId client, std::string_view key);
  [[nodiscard]] std::size_t queue_length(std::string_view key) const;

  enum class Wake { kAll, kOne };
  Result<void> wait(StoreClientId client, const StoreRequest& request);
  void arrived(std::string_view key, Wake wake);
  void drop_wait(WaitId id);

  [[nodiscard]] bool is_present(std::string_view key) const;
  [[nodiscard]] std::string_view value_of(std::string_view key) const;
  [[nodiscard]] Result<void> check_room(std::size_t bytes) const;
  Result<void> charge(std::size_t added, std::size_t removed);
  Result<void> charge_new_key(std::size_t bytes);
  [[nodiscard]] Error too_many_keys() const;

  void reply_u8(StoreClientId client, std::uint8_t value);
  void reply_u32(StoreClientId client, std::uint32_t value);
  void reply_i64(StoreClientId client, std::int64_t value);
  void reply_blob(StoreClientId client, std::string_view bytes);

  StoreLimits limits_;
  StoreOutbox& outbox_;
  KeyMap<std::string> values_;
  KeyMap<std::deque<std::string>> queues_;  // none is empty
  KeyMap<std::set<WaitId>> waits_by_key_;   // none is empty
  std::unordered_map<WaitId, Wait> waits_;
  std::unordered_map<StoreClientId, WaitId> wait_of_client_;  // at most one per client
  WaitId next_wait_ = 0;
  std::size_t held_bytes_ = 0;
};

}  // namespace accel::supervisor

#include "runtime/supervisor/store/store_table.h"

#include <algorithm>
#include <charconv>
#include <random>

#include <xxhash.h>

// Memory: held_bytes_ counts keys, values, queue elements and the keys that clients wait for, each
// of the latter two with a fixed overhead, so that many tiny ones are counted as what they cost. A
// request asks charge() for what it will add before it changes anything; so a refused request has
// no effect.

namespace accel::supervisor {

namespace {

constexpr std::size_t kElementOverhead = 64;  // of a queue element or a key waited for

std::optional<std::int64_t> parse_decimal(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Error reply_too_large(StoreCommand command) {
  return {ErrorCode::kStoreLimit,
          std::string(to_string(command)) + ": a reply of more than " +
              std::to_string(kStoreMaxMessageBytes) + " bytes"};
}

}  // namespace

std::size_t StoreTable::KeyHash::operator()(std::string_view key) const noexcept {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

StoreTable::StoreTable(StoreLimits limits, StoreOutbox& outbox)
    : limits_(limits),
      outbox_(outbox),
      values_(0, KeyHash{std::random_device{}()}),
      queues_(0, values_.hash_function()),
      waits_by_key_(0, values_.hash_function()) {}

Result<void> StoreTable::apply(StoreClientId client, const StoreRequest& request) {
  const auto key = request.keys.empty() ? std::string_view() : request.keys.front();
  const auto value = request.values.empty() ? std::string_view() : request.values.front();
  switch (request.command) {
    case StoreCommand::kValidate:
      return {};
    case StoreCommand::kSet:
      return set(key, value);
    case StoreCommand::kCompareSet:
      return compare_set(client, request);
    case StoreCommand::kGet:
      reply_blob(client, value_of(key));
      return {};
    case StoreCommand::kAdd:
      return add(client, key, request.delta);
    case StoreCommand::kCheck: {
      const bool ready = std::all_of(
          request.keys.begin(), request.keys.end(), [&](auto each) { return is_present(each); });
      reply_u8(client, ready ? kStoreReady : kStoreNotReady);
      return {};
    }
    case StoreCommand::kWait:
      return wait(client, request);
    case StoreCommand::kGetNumKeys:
      reply_i64(client, static_cast<std::int64_t>(values_.size()));
      return {};
    case StoreCommand::kDeleteKey:
      reply_i64(client, delete_key(key));
      return {};
    case StoreCommand::kAppend:
      return append(key, value);
    case StoreCommand::kMultiGet:
      return multi_get(client, request);
    case StoreCommand::kMultiSet:
      return multi_set(request);
    case StoreCommand::kCancelWait:
      forget(client);
      reply_u8(client, kStoreWaitCanceled);
      return {};
    case StoreCommand::kPing:
      reply_u32(client, request.number);
      return {};
    case StoreCommand::kQueuePush:
      return queue_push(key, value);
    case StoreCommand::kQueuePop:
      queue_pop(client, key);
      return {};
    case StoreCommand::kQueueLen:
      reply_i64(client, static_cast<std::int64_t>(queue_length(key)));
      return {};
    case StoreCommand::kListKeys:
      return list_keys(client);
  }
  return Error(ErrorCode::kInternal, "a store request without a meaning");
}

// ---- values ----

Result<void> StoreTable::set(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (auto room = charge_new_key(key.size() + value.size()); !room) return room;
    values_.emplace(key, value);
  } else {
    if (auto room = charge(value.size(), found->second.size()); !room) return room;
    found->second.assign(value);
  }
  arrived(key, Wake::kAll);
  return {};
}

Result<void> StoreTable::compare_set(StoreClientId client, const StoreRequest& request) {
  const std::string_view key = request.keys[0];
  const std::string_view expected = request.values[0];
  const std::string_view desired = request.values[1];
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) {
    reply_blob(client, expected);
    return {};
  }
  if (found != values_.end() && found->second != expected) {
    reply_blob(client, found->second);
    return {};
  }
  if (auto done = set(key, desired); !done) return done;
  reply_blob(client, desired);
  return {};
}

Result<void> StoreTable::add(StoreClientId client, std::string_view key, std::int64_t delta) {
  std::int64_t sum = delta;
  if (const auto found = values_.find(key); found != values_.end()) {
    const auto current = parse_decimal(found->second);
    if (!current || __builtin_add_overflow(*current, delta, &sum)) {
      return Error(ErrorCode::kProtocol,
                   "ADD: the value of the key is no 64-bit number, or would become none");
    }
  }
  if (auto done = set(key, std::to_string(sum)); !done) return done;
  reply_i64(client, sum);
  return {};
}

Result<void> StoreTable::append(std::string_view key, std::string_view bytes) {
  const auto found = values_.find(key);
  if (found == values_.end()) return set(key, bytes);
  if (found->second.size() + bytes.size() > kStoreMaxValueBytes) {
    return Error(
        ErrorCode::kStoreLimit,
        "APPEND: the value would have more than " + std::to_string(kStoreMaxValueBytes) + " bytes");
  }
  if (auto room = charge(bytes.size(), 0); !room) return room;
  found->second.append(bytes);
  arrived(key, Wake::kAll);
  return {};
}

Result<void> StoreTable::multi_set(const StoreRequest& request) {
  // All or nothing: what all of them could add at most must fit before the first is stored.
  std::size_t added = 0;
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    added += request.keys[i].size() + request.values[i].size();
  }
  if (request.keys.size() > limits_.max_keys - std::min(limits_.max_keys, values_.size())) {
    return too_many_keys();
  }
  if (auto room = check_room(added); !room) return room;
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    if (auto done = set(request.keys[i], request.values[i]); !done) return done;
  }
  return {};
}

Result<void> StoreTable::multi_get(StoreClientId client, const StoreRequest& request) {
  std::size_t total = 0;
  for (const std::string_view key : request.keys)
    total += sizeof(std::uint64_t) + value_of(key).size();
  if (total > kStoreMaxMessageBytes) return reply_too_large(request.command);
  std::string reply;
  reply.reserve(total);
  for (const std::string_view key : request.keys) append_blob(reply, value_of(key));
  outbox_.send(client, reply);
  return {};
}

Result<void> StoreTable::list_keys(StoreClientId client) {
  std::size_t total = sizeof(std::uint64_t);
  for (const auto& [key, value] : values_) total += sizeof(std::uint64_t) + key.size();
  if (total > kStoreMaxMessageBytes) return reply_too_large(StoreCommand::kListKeys);
  std::string reply;
  reply.reserve(total);
  append_u64(reply, values_.size());
  for (const auto& [key, value] : values_) append_blob(reply, key);
  outbox_.send(client, reply);
  return {};
}

std::int64_t StoreTable::delete_key(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return 0;
  held_bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return 1;
}

// ---- queues ----

Result<void> StoreTable::queue_push(std::string_view key, std::string_view element) {
  auto found = queues_.find(key);
  const std::size_t queue_cost = found == queues_.end() ? key.size() + kElementOverhead : 0;
  if (auto room = charge(element.size() + kElementOverhead + queue_cost, 0); !room) return room;
  if (found == queues_.end()) found = queues_.try_emplace(std::string(key)).first;
  found->second.emplace_back(element);
  arrived(key, Wake::kOne);
  return {};
}

void StoreTable::queue_pop(StoreClientId client, std::string_view key) {
  std::string reply;
  append_i64(reply, static_cast<std::int64_t>(queue_length(key)));
  if (const auto found = queues_.find(key); found != queues_.end()) {
    std::deque<std::string>& queue = found->second;
    append_blob(reply, queue.front());
    held_bytes_ -= queue.front().size() + kElementOverhead;
    queue.pop_front();
    if (queue.empty()) {
      held_bytes_ -= key.size() + kElementOverhead;
      queues_.erase(found);
    }
  }
  outbox_.send(client, reply);
}

std::size_t StoreTable::queue_length(std::string_view key) const {
  const auto found = queues_.find(key);
  return found == queues_.end() ? 0 : found->second.size();
}

// ---- waits ----

Result<void> StoreTable::wait(StoreClientId client, const StoreRequest& request) {
  if (wait_of_client_.contains(client)) {
    return Error(ErrorCode::kProtocol, "WAIT: sent while another one is pending");
  }
  Wait pending{client, {}};
  std::size_t cost = 0;
  for (const std::string_view key : request.keys) {
    if (is_present(key)) continue;
    pending.missing.emplace_back(key);
    cost += key.size() + kElementOverhead;
  }
  if (pending.missing.empty()) {
    reply_u8(client, kStoreWaitOver);
    return {};
  }
  if (auto room = charge(cost, 0); !room) return room;
  pending.held_bytes = cost;
  const WaitId id = next_wait_++;
  for (const std::string& key : pending.missing) {
    if (waits_by_key_[key].insert(id).second)
      ++pending.num_missing;  // a key named twice counts once
  }
  waits_.emplace(id, std::move(pending));
  wait_of_client_.emplace(client, id);
  return {};
}

// Tells those who wait for `key` that it is there. With kOne it stops at the first client that this
// wakes: one queue element serves one client.
void StoreTable::arrived(std::string_view key, Wake wake) {
  const auto found = waits_by_key_.find(key);
  if (found == waits_by_key_.end()) return;
  std::set<WaitId>& ids = found->second;
  bool woke_one = false;
  while (!ids.empty() && !(woke_one && wake == Wake::kOne)) {
    const WaitId id = *ids.begin();
    ids.erase(ids.begin());
    Wait& waiting = waits_.at(id);
    if (--waiting.num_missing > 0) continue;
    reply_u8(waiting.client, kStoreWaitOver);
    drop_wait(id);
    woke_one = true;
  }
  if (ids.empty()) waits_by_key_.erase(found);
}

void StoreTable::forget(StoreClientId client) {
  const auto found = wait_of_client_.find(client);
  if (found == wait_of_client_.end()) return;
  const WaitId id = found->second;
  for (const std::string& key : waits_.at(id).missing) {
    const auto indexed = waits_by_key_.find(key);
    if (indexed == waits_by_key_.end()) continue;  // arrived meanwhile
    indexed->second.erase(id);
    if (indexed->second.empty()) waits_by_key_.erase(indexed);
  }
  drop_wait(id);
}

// Requires: no key's index names it any more.
void StoreTable::drop_wait(WaitId id) {
  const auto found = waits_.find(id);
  held_bytes_ -= found->second.held_bytes;
  wait_of_client_.erase(found->second.client);
  waits_.erase(found);
}

// ---- limits, replies ----

bool StoreTable::is_present(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

std::string_view StoreTable::value_of(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::string_view() : std::string_view(found->second);
}

Result<void> StoreTable::check_room(std::size_t bytes) const {
  if (bytes == 0 || held_bytes_ + bytes <= limits_.max_held_bytes) return {};
  return Error(ErrorCode::kStoreLimit,
               "the store holds " + std::to_string(held_bytes_) + " bytes and may not take " +
                   std::to_string(bytes) + " more (limit " +
                   std::to_string(limits_.max_held_bytes) + ")");
}

Result<void> StoreTable::charge(std::size_t added, std::size_t removed) {
  if (auto room = check_room(added > removed ? added - removed : 0); !room) return room;
  held_bytes_ = held_bytes_ + added - removed;
  return {};
}

Result<void> StoreTable::charge_new_key(std::size_t bytes) {
  if (values_.size() >= limits_.max_keys) return too_many_keys();
  return charge(bytes, 0);
}

Error StoreTable::too_many_keys() const {
  return {ErrorCode::kStoreLimit,
          "the store may not take more than " + std::to_string(limits_.max_keys) + " keys"};
}

void StoreTable::reply_u8(StoreClientId client, std::uint8_t value) {
  std::string reply;
  append_u8(reply, value);
  outbox_.send(client, reply);
}

void StoreTable::reply_u32(StoreClientId client, std::uint32_t value) {
  std::string reply;
  append_u32(reply, value);
  outbox_.send(client, reply);
}

void StoreTable::reply_i64(StoreClientId client, std::int64_t value) {
  std::string reply;
  append_i64(reply, value);
  outbox_.send(client, reply);
}

void StoreTable::reply_blob(StoreClientId client, std::string_view bytes) {
  std::string reply;
  reply.reserve(sizeof(std::uint64_t) + bytes.size());
  append_blob(reply, bytes);
  outbox_.send(client, reply);
}

}  // namespace accel::supervisor

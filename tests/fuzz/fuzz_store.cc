// Fuzzes the store without sockets: parsers of four clients on one table.
//
// The input is a script: a byte for the client (its two low bits; 0x80: the client leaves and comes
// back) and the length of the chunk in the other bits, then the chunk as the network would deliver it.
// Whatever comes, the table's books must balance.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/supervisor/store/store_table.h"

namespace {

using namespace accel::supervisor;

constexpr StoreLimits kLimits{.max_keys = 16, .max_held_bytes = 4096};
constexpr std::size_t kClients = 4;

void require(bool condition) {
  if (!condition) std::abort();
}

class Outbox : public StoreOutbox {
 public:
  void send(StoreClientId client, std::string_view bytes) override {
    require(client < kClients && bytes.size() <= kStoreMaxMessageBytes);
    last = bytes;
  }
  std::string last;
};

StoreRequest request(StoreCommand command, std::vector<std::string_view> keys = {}) {
  StoreRequest made;
  made.command = command;
  made.keys = std::move(keys);
  return made;
}

class Store {
 public:
  void run(std::string_view script) {
    while (script.size() >= 2) {
      const auto head = static_cast<std::uint8_t>(script[0]);
      const std::size_t client = head & 3;
      if ((head & 0x80) != 0) leave(client);
      const std::size_t length = std::min<std::size_t>((head >> 2) & 31, script.size() - 1);
      deliver(client, script.substr(1, length));
      script.remove_prefix(1 + length);
    }
    check_books();
  }

 private:
  void leave(std::size_t client) {
    table_.forget(client);
    parsers_[client] = {};
    is_cut_[client] = false;
  }

  void deliver(std::size_t client, std::string_view chunk) {
    if (is_cut_[client]) return;
    parsers_[client].feed(chunk);
    while (true) {
      const auto next = parsers_[client].next();
      if (next && *next == nullptr) break;
      const std::size_t held_before = table_.held_bytes();
      if (next && table_.apply(client, **next)) {
        require(table_.held_bytes() <= kLimits.max_held_bytes);
        continue;
      }
      require(table_.held_bytes() == held_before);  // a refused request changes nothing
      table_.forget(client);
      is_cut_[client] = true;
      break;
    }
    require(table_.num_keys() <= kLimits.max_keys && table_.num_waits() <= kClients);
  }

  // With every wait, queue and key gone, nothing may be held.
  void check_books() {
    for (std::size_t client = 0; client < kClients; ++client) table_.forget(client);
    require(table_.num_waits() == 0);
    require(table_.apply(0, request(StoreCommand::kListKeys)).has_value());
    const std::string keys = outbox_.last;
    std::string_view rest = std::string_view(keys).substr(sizeof(std::uint64_t));
    while (!rest.empty()) {
      std::uint64_t length = 0;
      require(rest.size() >= sizeof(length));
      std::memcpy(&length, rest.data(), sizeof(length));
      rest.remove_prefix(sizeof(length));
      const std::string_view key = rest.substr(0, length);
      require(table_.apply(0, request(StoreCommand::kDeleteKey, {key})).has_value());
      rest.remove_prefix(length);
    }
    require(table_.num_keys() == 0);
    if (table_.num_queues() == 0) require(table_.held_bytes() == 0);
  }

  Outbox outbox_;
  StoreTable table_{kLimits, outbox_};
  std::array<StoreRequestParser, kClients> parsers_;
  std::array<bool, kClients> is_cut_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Store().run({reinterpret_cast<const char*>(data), size});
  return 0;
}

// BoardSeal: how launchers that share a token tell their own words on the board from those of others.
//
// Whoever reaches the store can read and write it. With a token each value of a launcher is
//
//   "accel-seal-1:" || proof || text       proof = HMAC-SHA256(SHA-256(token), session || 0 || key || 0 || text)
//
// with the session "<id of machine 0's launcher>/<generation>", which its card on accel/host says. That
// one is sealed with an empty session. So no value can be made up, altered, moved to another key, or
// taken from another generation. A card of an earlier job with the same token is believed as well,
// and its words with it, until pin(): a plan names the launchers that it is for (JobPlan), so the
// recorded job starts nobody's workers, and stops none that run.
//
// What is not sealed reads as absent, and is replaced: a swap that expects nothing expects it. Values
// are no secrets, and absent ones are not sealed: whoever reaches the store can still remove what
// stands there, put back what stood there in this generation, and so hold the job up or lose it a machine.
//
// Without a token values pass as they are.
//
// Threads:  a value; one at a time.
// Source:   docs/security.md; tests/unit/launcher/static/board_seal_test.cc.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <accel/error.h>

#include "launcher/static/board.h"
#include "launcher/static/records.h"

namespace accel::launcher {

class BoardSeal {
 public:
  static constexpr std::size_t kProofBytes = 32;
  using Prove = std::function<std::string(
      std::string_view session, std::string_view key, std::string_view text)>;

  BoardSeal() = default;  // without a token
  explicit BoardSeal(Prove prove) : prove_(std::move(prove)) {}

  [[nodiscard]] bool has_token() const { return static_cast<bool>(prove_); }

  // A generation begins with an empty board. own: our card; is_main: it is machine 0's.
  void begin(const MachineCard& own, bool is_main);
  // A plan that names us was taken: words of this session alone count, until the next begin().
  void pin() { is_pinned_ = true; }

  // What is to be sent in place of `wanted`.
  [[nodiscard]] supervisor::StoreExchange seal(const supervisor::StoreExchange& wanted) const;
  // The answer to it, as the board that it would be without seals.
  [[nodiscard]] Board open(const supervisor::StoreExchange& wanted, supervisor::StoreAnswer answer);

  // Why what calls itself machine 0 is none to us: it has no token, another one, or has one and we do not.
  // Only after three looks in a row: a stranger may write there too, and machine 0 writes over it.
  [[nodiscard]] std::optional<Error> distrust() const;

 private:
  [[nodiscard]] std::string sealed(std::string_view key, const std::string& text) const;
  // Empty: absent, or not sealed by us.
  [[nodiscard]] std::string opened(const std::string& key, const std::string& value) const;
  void read_host(const std::string& value);

  Prove prove_;
  bool is_main_ = false;
  bool is_pinned_ = false;
  int generation_ = 0;
  std::string session_;  // empty: machine 0's card was not read yet
  std::map<std::string, std::string, std::less<>> forged_;  // what stands there instead, by key
  std::string host_;                                        // as it was read last
  int num_distrusted_ = 0;                                  // looks in a row
};

}  // namespace accel::launcher

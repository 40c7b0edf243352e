// BoardSeal: how launchers that share a token tell their own words on the board from those of others.
//
// Whoever reaches the store can read and write it. With a token each value of a launcher is
//
//   "accel-seal-2:" || proof || text       proof = HMAC-SHA256(SHA-256(token), session || 0 || key || 0 || text)
//
// with the session "<id of machine 0's launcher>/<generation>", which its card on accel/host says. The
// card and accel/hello/S are sealed with an empty session. So no value can be made up, altered, moved to
// another key, or taken from another generation.
//
// The card alone does not say when it was written: one of an earlier job with the same token is sealed as
// well. So a launcher believes no session before machine 0 has answered it there:
//
//   the launcher    accel/host says a session that is not ours   writes its id into accel/hello/S, if free
//   machine 0       accel/hello/S holds an id                    writes it into accel/welcome/S, frees accel/hello/S
//   the launcher    accel/welcome/S holds its id                 takes the session; words of no other one count
//
// The id was drawn for this launcher, so nobody has recorded an answer to it. S is drawn from the id and
// below the number of machines, and kMostSlots: who finds it taken waits for its turn. Later generations
// have the same machine 0, and nobody asks again. Until a plan is taken (pin()) another machine 0 that
// answers is believed: the first one may have been started anew.
//
// What is not sealed reads as absent, and is replaced: a swap that expects nothing expects it. Values
// are no secrets, and absent ones are not sealed: whoever reaches the store can still remove what
// stands there, put back what stood there in this generation, and so hold the job up or lose it a machine.
// Who shares the token between jobs that run at the same time lets him lead a machine to the other one.
//
// Without a token values pass as they are.
//
// Threads:  a value; one at a time.
// Source:   docs/admin/security.md; tests/unit/launcher/machines/board_seal_test.cc.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <accel/error.h>

#include "launcher/start/machines/board/board.h"
#include "launcher/start/machines/board/records.h"

namespace accel::launcher {

class BoardSeal {
 public:
  static constexpr std::size_t kProofBytes = 32;
  static constexpr int kMostSlots = 256;  // a few turns for thousands of machines
  using Prove = std::function<std::string(
      std::string_view session, std::string_view key, std::string_view text)>;

  BoardSeal() = default;  // without a token
  explicit BoardSeal(Prove prove) : prove_(std::move(prove)) {}

  [[nodiscard]] bool has_token() const { return static_cast<bool>(prove_); }

  // A generation begins with an empty board. own: our card; is_main: it is machine 0's.
  void begin(const MachineCard& own, bool is_main);
  // A plan that names us was taken: no other machine 0 is asked, until the next begin().
  void pin() { is_pinned_ = true; }
  // A card that the token proves stands there, and whether machine 0 lives is not known yet.
  [[nodiscard]] bool is_asking() const {
    return !is_main_ && !is_pinned_ && host_card_ && !is_known(host_session_);
  }

  // What is to be sent in place of `wanted`.
  [[nodiscard]] supervisor::StoreExchange seal(const supervisor::StoreExchange& wanted) const;
  // The answer to it, as the board that it would be without seals.
  [[nodiscard]] Board open(const supervisor::StoreExchange& wanted, supervisor::StoreAnswer answer);

  // Why what calls itself machine 0 is none to us: it has no token, another one, or has one and we do not.
  // Only after three looks in a row: a stranger may write there too, and machine 0 writes over it.
  [[nodiscard]] std::optional<Error> distrust() const;

 private:
  // `wanted` with what is asked and answered beside it.
  [[nodiscard]] supervisor::StoreExchange with_greeting(supervisor::StoreExchange wanted) const;
  void take_greeting(const Board& raw);
  [[nodiscard]] bool is_known(std::string_view session) const {
    return !session.empty() && (session == session_ || session == answered_);
  }
  [[nodiscard]] std::string_view session_for(std::string_view key) const;
  [[nodiscard]] std::string sealed(std::string_view key, const std::string& text) const;
  // Empty: absent, or not sealed by us.
  [[nodiscard]] std::string opened(const std::string& key, const std::string& value) const;
  void read_host(const std::string& value);
  // What it reads as.
  [[nodiscard]] std::string believed(const std::string& key, std::string value);

  Prove prove_;
  bool is_main_ = false;
  bool is_pinned_ = false;
  MachineCard own_;
  std::string main_id_;  // of machine 0's, once it is known
  std::string session_;  // of the words that we believe; empty: none yet
  std::string
      answered_;  // where machine 0 has answered us last; another generation tells of itself alone
  std::optional<MachineCard> host_card_;                    // that the token proves
  std::string host_session_;                                // of it
  std::map<int, std::string> hellos_;                       // machine 0: to be answered, by slot
  std::map<std::string, std::string, std::less<>> forged_;  // what stands there instead, by key
  std::string host_;                                        // as it was read last
  int num_distrusted_ = 0;                                  // looks in a row
};

}  // namespace accel::launcher

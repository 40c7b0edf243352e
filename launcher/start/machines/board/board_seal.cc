#include "launcher/start/machines/board/board_seal.h"

#include <algorithm>
#include <utility>

#include "launcher/start/machines/board/job_token.h"
#include "runtime/text/secret_text.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kSealPrefix = "accel-seal-2:";
constexpr std::string_view kAnyPrefix = "accel-seal-";  // of another build too
constexpr int kLooksBeforeDistrust = 3;

std::string session_of(const std::string& main_id, int generation) {
  return main_id + "/" + std::to_string(generation);
}

int num_slots_of(const MachineCard& main) {
  return std::clamp(main.num_machines, 1, BoardSeal::kMostSlots);
}

// Only the launcher whose id it is has to find it again.
int slot_of(const std::string& id, const MachineCard& main) {
  return static_cast<int>(std::hash<std::string>()(id) %
                          static_cast<std::size_t>(num_slots_of(main)));
}

}  // namespace

void BoardSeal::begin(const MachineCard& own, bool is_main) {
  is_main_ = is_main;
  is_pinned_ = false;
  own_ = own;
  if (is_main) main_id_ = own.id;
  const bool is_known_main = is_main || (own.generation > 0 && !main_id_.empty());
  session_ = is_known_main ? session_of(main_id_, own.generation) : "";
  answered_.clear();
  host_card_.reset();
  host_session_.clear();
  hellos_.clear();
  forged_.clear();
  host_.clear();
  num_distrusted_ = 0;
}

std::string_view BoardSeal::session_for(std::string_view key) const {
  if (key == board_key::kHost || key.starts_with(board_key::kHello)) return {};
  return key.starts_with(board_key::kWelcome) && !is_main_ ? host_session_ : session_;
}

std::string BoardSeal::sealed(std::string_view key, const std::string& text) const {
  if (text.empty()) return text;
  return std::string(kSealPrefix) + prove_(session_for(key), key, text) + text;
}

std::string BoardSeal::opened(const std::string& key, const std::string& value) const {
  const bool is_whole =
      value.starts_with(kSealPrefix) && value.size() > kSealPrefix.size() + kProofBytes;
  if (!is_whole) return {};
  const std::string text = value.substr(kSealPrefix.size() + kProofBytes);
  return is_same_secret(value, sealed(key, text)) ? text : std::string();
}

supervisor::StoreExchange BoardSeal::with_greeting(supervisor::StoreExchange wanted) const {
  using board_key::of;
  if (is_main_) {
    for (const auto& [slot, id] : hellos_) {
      wanted.swaps.push_back({of(board_key::kHello, slot), id, ""});
      wanted.sets.emplace_back(of(board_key::kWelcome, slot), id);
    }
    for (int slot = 0; slot < num_slots_of(own_); ++slot)
      wanted.reads.push_back(of(board_key::kHello, slot));
  } else if (is_asking()) {
    const int slot = slot_of(own_.id, *host_card_);
    wanted.swaps.push_back({of(board_key::kHello, slot), "", own_.id});
    wanted.reads.push_back(of(board_key::kHello, slot));  // a stranger's word may stand there
    wanted.reads.push_back(of(board_key::kWelcome, slot));
  }
  return wanted;
}

void BoardSeal::take_greeting(const Board& raw) {
  const auto read = [&](std::string_view prefix, int slot) {
    const std::string key = board_key::of(prefix, slot);
    return opened(key, raw.at(key));
  };
  hellos_.clear();
  for (int slot = 0; is_main_ && slot < num_slots_of(own_); ++slot) {
    std::string id = read(board_key::kHello, slot);
    if (!id.empty()) hellos_[slot] = std::move(id);
  }
  if (!is_asking() || read(board_key::kWelcome, slot_of(own_.id, *host_card_)) != own_.id) return;
  answered_ = host_session_;
  if (host_card_->generation != own_.generation) return;
  session_ = host_session_;
  main_id_ = host_card_->id;
}

supervisor::StoreExchange BoardSeal::seal(const supervisor::StoreExchange& wanted) const {
  if (!has_token()) return wanted;
  supervisor::StoreExchange out = with_greeting(wanted);
  for (auto& swap : out.swaps) {
    const auto forged = forged_.find(swap.key);
    swap.expected = swap.expected.empty() && forged != forged_.end()
                        ? forged->second
                        : sealed(swap.key, swap.expected);
    swap.desired = sealed(swap.key, swap.desired);
  }
  for (auto& [key, value] : out.sets) value = sealed(key, value);
  return out;
}

void BoardSeal::read_host(const std::string& value) {
  host_ = value;
  const std::string text =
      has_token() ? opened(std::string(board_key::kHost), value) : std::string();
  const bool is_believed = has_token() ? !text.empty() : !value.starts_with(kAnyPrefix);
  num_distrusted_ = value.empty() || is_believed ? 0 : num_distrusted_ + 1;
  const auto card = card_from(text);
  host_card_ = card ? std::optional(*card) : std::nullopt;
  host_session_ = card ? session_of(card->id, card->generation) : "";
}

// The card of machine 0 first, and its answer: they say how the others are sealed.
Board BoardSeal::open(const supervisor::StoreExchange& wanted, supervisor::StoreAnswer answer) {
  const supervisor::StoreExchange asked = has_token() ? with_greeting(wanted) : wanted;
  const Board raw(asked, answer);
  if (std::ranges::find(asked.reads, board_key::kHost) != asked.reads.end())
    read_host(raw.at(board_key::kHost));
  if (has_token()) take_greeting(raw);
  for (std::size_t i = 0; i < asked.reads.size() && i < answer.values.size(); ++i)
    answer.values[i] = believed(asked.reads[i], std::move(answer.values[i]));
  return {asked, answer};
}

std::string BoardSeal::believed(const std::string& key, std::string value) {
  const bool is_host = key == board_key::kHost;
  if (!has_token()) return is_host && num_distrusted_ > 0 ? std::string() : value;
  std::string text = opened(key, value);
  if (is_host) return is_known(host_session_) ? text : std::string();
  if (text.empty() && !value.empty()) {
    forged_[key] = std::move(value);
  } else {
    forged_.erase(key);
  }
  return text;
}

std::optional<Error> BoardSeal::distrust() const {
  if (num_distrusted_ < kLooksBeforeDistrust) return std::nullopt;
  const std::string variables =
      std::string(kJobTokenVariable) + " or " + std::string(kJobTokenFileVariable);
  if (!has_token()) {
    return Error(ErrorCode::kAuthentication,
                 "machine 0 has a token of the job, and this machine has none",
                 "set " + variables + " on every machine, to the same token");
  }
  const bool is_sealed = host_.starts_with(kAnyPrefix);
  if (is_sealed && !host_.starts_with(kSealPrefix)) {
    return Error(ErrorCode::kProtocol,
                 "machine 0 runs another version of accel: its words are sealed in another way",
                 "install the same version on every machine");
  }
  return Error(ErrorCode::kAuthentication,
               is_sealed ? "machine 0 has another token of the job than this machine"
                         : "this machine has a token of the job, and machine 0 has none",
               "set " + variables + " on every machine, to the same token");
}

}  // namespace accel::launcher

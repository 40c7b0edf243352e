#include "launcher/static/board_seal.h"

#include <algorithm>

#include "launcher/static/job_token.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kPrefix = "accel-seal-1:";
constexpr int kLooksBeforeDistrust = 3;

// In constant time for texts of the same length.
bool is_equal(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

std::string session_of(const MachineCard& main) {
  return main.id + "/" + std::to_string(main.generation);
}

}  // namespace

void BoardSeal::begin(const MachineCard& own, bool is_main) {
  is_main_ = is_main;
  is_pinned_ = false;
  generation_ = own.generation;
  session_ = is_main ? session_of(own) : "";
  forged_.clear();
  host_.clear();
  num_distrusted_ = 0;
}

std::string BoardSeal::sealed(std::string_view key, const std::string& text) const {
  if (text.empty()) return text;
  const std::string_view session = key == board_key::kHost ? std::string_view() : session_;
  return std::string(kPrefix) + prove_(session, key, text) + text;
}

std::string BoardSeal::opened(const std::string& key, const std::string& value) const {
  const bool is_whole = value.starts_with(kPrefix) && value.size() > kPrefix.size() + kProofBytes;
  if (!is_whole) return {};
  const std::string text = value.substr(kPrefix.size() + kProofBytes);
  return is_equal(value, sealed(key, text)) ? text : std::string();
}

supervisor::StoreExchange BoardSeal::seal(const supervisor::StoreExchange& wanted) const {
  if (!has_token()) return wanted;
  supervisor::StoreExchange out = wanted;
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
  const bool is_believed = has_token() ? !text.empty() : !value.starts_with(kPrefix);
  num_distrusted_ = value.empty() || is_believed ? 0 : num_distrusted_ + 1;
  if (is_main_ || is_pinned_ || text.empty()) return;
  const auto card = card_from(text);
  if (card && card->generation == generation_) session_ = session_of(*card);
}

// The card of machine 0 first: it says how the others are sealed.
Board BoardSeal::open(const supervisor::StoreExchange& wanted, supervisor::StoreAnswer answer) {
  const auto host = std::ranges::find(wanted.reads, board_key::kHost) - wanted.reads.begin();
  const auto host_index = static_cast<std::size_t>(host);
  if (host_index < answer.values.size()) {
    read_host(answer.values[host_index]);
    if (!has_token() && num_distrusted_ > 0) answer.values[host_index].clear();
  }
  if (!has_token()) return {wanted, answer};
  for (std::size_t i = 0; i < wanted.reads.size() && i < answer.values.size(); ++i) {
    const std::string& key = wanted.reads[i];
    std::string text = opened(key, answer.values[i]);
    if (text.empty() && !answer.values[i].empty()) {
      forged_[key] = std::move(answer.values[i]);
    } else {
      forged_.erase(key);
    }
    answer.values[i] = std::move(text);
  }
  return {wanted, answer};
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
  const bool is_sealed = host_.starts_with(kPrefix);
  return Error(ErrorCode::kAuthentication,
               is_sealed ? "machine 0 has another token of the job than this machine"
                         : "this machine has a token of the job, and machine 0 has none",
               "set " + variables + " on every machine, to the same token");
}

}  // namespace accel::launcher

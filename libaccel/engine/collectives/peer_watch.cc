#include "libaccel/engine/collectives/peer_watch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "libaccel/engine/collectives/wait_interrupter.h"
#include "libaccel/engine/shm/group/point_to_point.h"
#include "libaccel/tensors/tensor_memory.h"
#include "runtime/printable.h"

namespace accel {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

// How long all peer_watch may take on their way out; and one that has begun to come in, when the connection is closed.
constexpr auto kSaying = 500ms;
constexpr auto kHearing = 20ms;

// As it travels.
struct Notice {
  std::int32_t rank = 0;
  std::int32_t code = 0;
  std::int32_t has_left = 0;           // 1: in order, and the rest means nothing
  std::array<char, 488> message = {};  // ends with the first zero, or without
};

Notice notice_of(const GroupFailure& failure) {
  Notice notice = {.rank = failure.rank, .code = static_cast<std::int32_t>(failure.code)};
  failure.message.copy(notice.message.data(), notice.message.size());
  return notice;
}

// What another process sent is believed as far as it can be printed.
GroupFailure failure_of(const Notice& notice) {
  const auto end = std::ranges::find(notice.message, '\0');
  const bool is_code =
      notice.code >= 0 && notice.code < static_cast<std::int32_t>(ErrorCode::kCount_);
  return {.rank = notice.rank,
          .code = is_code ? static_cast<ErrorCode>(notice.code) : ErrorCode::kPeerLost,
          .message = printable(std::string(notice.message.begin(), end))};
}

std::string label_of(int rank) {
  return "rank " + std::to_string(rank);
}

// "rank 2, rank 3 have ended".
std::string text_of_silent(std::span<const RankEnd> silent) {
  std::string text;
  for (const RankEnd& end : silent) text += (text.empty() ? "" : ", ") + label_of(end.rank);
  return text + (silent.size() == 1 ? " has ended" : " have ended");
}

}  // namespace

GroupFailure cause_of(int own_rank, const Error& own, std::span<const RankEnd> ends) {
  GroupFailure cause = {.rank = own_rank, .code = own.code(), .message = own.message()};
  if (own.code() != ErrorCode::kPeerLost) return cause;
  std::vector<RankEnd> silent;
  std::ranges::copy_if(ends, std::back_inserter(silent), [](const RankEnd& end) {
    return !end.failure && !end.has_left;
  });
  if (!silent.empty()) {
    const bool is_named =
        silent.size() == 1 && own.message().starts_with(label_of(silent[0].rank) + " ");
    if (!is_named) cause.message = text_of_silent(silent) + "; " + own.message();
    return cause;
  }
  const auto told =
      std::ranges::find_if(ends, [](const RankEnd& end) { return end.failure.has_value(); });
  return told == ends.end() ? cause : *told->failure;
}

Error error_for(int own_rank, const Error& own, const GroupFailure& cause) {
  const bool is_own = cause.rank == own_rank;
  const std::string who = is_own ? "" : label_of(cause.rank) + " said: ";
  Error error(
      cause.code, who + cause.message, is_own && cause.code == own.code() ? own.remedy() : "");
  for (const std::string& context : own.context()) error.while_doing(context);
  for (const auto& [label, text] : own.details()) error.with_detail(label, text);
  return error;
}

bool is_in_vain(int peer, std::span<const RankEnd> ends, int num_others) {
  const bool is_any = peer == shm::kAnyRank;
  if (is_any && std::ssize(ends) == num_others) return true;
  return std::ranges::any_of(ends, [&](const RankEnd& end) {
    return end.failure || end.rank == peer || (is_any && !end.has_left);
  });
}

struct PeerWatch::Peer {
  int rank = 0;
  at::Tensor room;
  WaitInterrupter::WorkPtr wire;  // none: the connection was closed before
  WaitInterrupter::WorkPtr failure;
};

PeerWatch::PeerWatch(c10d::Backend& backend, WaitInterrupter& wait_interrupter, int first_tag)
    : backend_(backend), wait_interrupter_(wait_interrupter), first_tag_(first_tag) {
  for (int rank = 0; rank < backend.getSize(); ++rank) {
    if (rank == backend.getRank()) continue;
    Peer& peer = peers_.emplace_back();
    peer.rank = rank;
    peer.room = at::empty({static_cast<std::int64_t>(sizeof(Notice))}, at::kByte);
    std::vector<at::Tensor> nothing = {at::empty({1}, at::kByte)};
    std::vector<at::Tensor> room = {peer.room};
    try {
      peer.failure = backend.recv(room, rank, first_tag + 1);
      peer.wire = backend.recv(nothing, rank, first_tag);
    } catch (const std::exception&) {
      // look() finds it closed.
    }
  }
}

PeerWatch::~PeerWatch() = default;

// An aborted wait comes back at once, with the error when there is one.
bool PeerWatch::is_closed(const Peer& peer) {
  if (!peer.wire) return true;
  try {
    peer.wire->abort();
    (void)peer.wire->wait(kNoTimeout);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

const std::vector<RankEnd>& PeerWatch::look() {
  const auto closed = std::stable_partition(
      peers_.begin(), peers_.end(), [](const Peer& peer) { return !is_closed(peer); });
  if (closed == peers_.end()) return ends_;
  std::transform(closed, peers_.end(), std::back_inserter(ends_), [this](const Peer& peer) {
    return end_of(peer);
  });
  peers_.erase(closed, peers_.end());
  std::ranges::sort(ends_, {}, &RankEnd::rank);
  return ends_;
}

RankEnd PeerWatch::end_of(const Peer& peer) {
  try {
    if (!peer.failure || !wait_interrupter_.wait(peer.failure, kHearing))
      return {.rank = peer.rank};
    Notice notice;
    std::memcpy(&notice, peer.room.const_data_ptr(), sizeof notice);
    if (notice.has_left != 0) return {.rank = peer.rank, .has_left = true};
    return {.rank = peer.rank, .failure = failure_of(notice)};
  } catch (const std::exception&) {
    return {.rank = peer.rank};
  }
}

void PeerWatch::say(const GroupFailure& failure) noexcept {
  Notice notice = notice_of(failure);
  send(&notice, sizeof notice);
}

void PeerWatch::say_left() noexcept {
  Notice notice = {.has_left = 1};
  send(&notice, sizeof notice);
}

void PeerWatch::send(void* notice, std::size_t bytes) noexcept {
  try {
    std::vector<WaitInterrupter::WorkPtr> sent;
    for (const Peer& peer : peers_) {
      try {
        std::vector<at::Tensor> tensors = {tensor_on(notice, bytes)};
        sent.push_back(backend_.send(tensors, peer.rank, first_tag_ + 1));
      } catch (const std::exception&) {
        // It is gone.
      }
    }
    const auto deadline = steady_clock::now() + kSaying;
    for (const auto& work : sent) {
      const auto left = deadline - steady_clock::now();
      if (left <= 0ms) break;
      try {
        (void)wait_interrupter_.wait(work,
                                     std::chrono::duration_cast<std::chrono::microseconds>(left));
      } catch (const std::exception&) {
        // Likewise.
      }
    }
  } catch (const std::exception&) {
    // No memory: the others see the closed connection.
  }
}

}  // namespace accel

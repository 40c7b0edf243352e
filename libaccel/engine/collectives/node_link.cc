#include "libaccel/engine/collectives/node_link.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <xxhash.h>

#include "libaccel/engine/shm/group/wait_slice.h"
#include "libaccel/engine/shm/memory/call.h"
#include "libaccel/tensors/tensor_memory.h"
#include "runtime/text/first_line.h"

namespace accel {
namespace {

constexpr std::int32_t kBeginning = NodeLink::kFirstOwnTag;
constexpr std::int32_t kParting = NodeLink::kFirstOwnTag + 1;
constexpr std::int32_t kFailures = NodeLink::kFirstOwnTag + 2;
constexpr std::int32_t kFirstRest = kFailures + PeerWatch::kNumTags;

// How long a rank that has met an error waits to hear what else is wrong.
constexpr std::chrono::milliseconds kLastWords{500};
constexpr std::chrono::milliseconds kLastWordsPause{5};

// How often who waits looks whether the others are still there.
constexpr std::chrono::milliseconds kLookEvery{100};
// What came before the other rank closed is here within that time.
constexpr std::chrono::milliseconds kLastBytes{20};
// For a wait that is only to find out whether the bytes are there: shorter, and the thread might miss it.
constexpr std::chrono::microseconds kGlance{100};

constexpr const char* kHasEnded = "has ended or met an error";
constexpr const char* kHasLeft = "has left the group";
constexpr const char* kAborted = "the group was aborted by this process";

// Copying so much costs less than the trip that it saves.
constexpr std::size_t kSmallBytes = 16 * 1024;

struct Beginning {
  shm::Call call;
  std::uint64_t bytes = 0;  // of the transfer
};
static_assert(std::is_trivially_copyable_v<Beginning> &&
              std::has_unique_object_representations_v<Beginning>);

bool is_small(std::size_t bytes) {
  return bytes <= kSmallBytes;
}

std::int32_t tag_of_rest(const Beginning& beginning) {
  const std::uint64_t hash = XXH3_64bits(&beginning, sizeof beginning);
  constexpr std::uint64_t kNumTags = std::uint64_t{INT32_MAX} - kFirstRest + 1;
  return kFirstRest + static_cast<std::int32_t>(hash % kNumTags);
}

std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

// The first line, without the place in Gloo's source before it.
std::string gloo_text(const char* what) {
  std::string_view text = what;
  const std::size_t place_end = text.starts_with("[/") ? text.find("] ") : std::string_view::npos;
  if (place_end != std::string_view::npos) text.remove_prefix(place_end + 2);
  return first_line(text);
}

std::string peer_text(int peer) {
  return peer == shm::kAnyRank ? "another rank" : rank_text(peer);
}

Error lateness_of(int peer) {
  return Error(ErrorCode::kPeerLost,
               peer_text(peer) + " did not come within the timeout",
               "check that every rank calls the same collectives; raise "
               "InitProcessGroupKwargs.timeout for slow ranks");
}

Error loss_of(int peer, const std::string& how) {
  return Error(ErrorCode::kPeerLost, peer_text(peer) + " " + kHasEnded + how);
}

// Of what the backend throws.
Error gloo_error(int peer, const char* what) {
  const std::string said = gloo_text(what);
  const bool is_late =
      said.find("imed out") != std::string::npos || said.find("timeout") != std::string::npos;
  return is_late ? lateness_of(peer) : loss_of(peer, " (" + said + ")");
}

at::Tensor room_for_beginning(std::size_t small) {
  return at::empty({static_cast<std::int64_t>(sizeof(Beginning) + small)}, at::kByte);
}

at::Tensor beginning_of(const shm::Call& call, const NodeLink::Outgoing& transfer) {
  const std::size_t small = is_small(transfer.bytes) ? transfer.bytes : 0;
  const Beginning beginning = {.call = call, .bytes = transfer.bytes};
  at::Tensor room = room_for_beginning(small);
  auto* const begin = static_cast<std::byte*>(room.data_ptr());
  std::memcpy(begin, &beginning, sizeof beginning);
  if (small > 0) std::memcpy(begin + sizeof beginning, transfer.data, small);
  return room;
}

Result<void> check_beginning(const shm::Call& call,
                             const NodeLink::Incoming& expected,
                             const Beginning& came) {
  if (came.call != call) {
    return Error(ErrorCode::kShapeMismatch,
                 "this rank calls " + text_of(call) + ", and " + rank_text(expected.from) + " " +
                     text_of(came.call));
  }
  if (came.bytes == expected.bytes) return {};
  return Error(ErrorCode::kShapeMismatch,
               "this rank expects " + std::to_string(expected.bytes) + " bytes of " +
                   rank_text(expected.from) + ", which sends " + std::to_string(came.bytes));
}

}  // namespace

struct NodeLink::Exchange {
  struct Started {
    at::Tensor room;  // of a beginning; outlives what is read into it
    WorkPtr work;
    int peer;
  };

  shm::Call call;
  std::vector<Incoming> in;
  std::vector<Started> beginnings_in;  // one for each of `in`
  std::vector<Started> beginnings_out;
  std::vector<Started> rests;
};

NodeLink::NodeLink(c10::intrusive_ptr<c10d::Backend> backend,
                   std::optional<std::chrono::milliseconds> timeout)
    : backend_(std::move(backend)),
      rank_(backend_->getRank()),
      timeout_(timeout.value_or(backend_->getBackendOptions()->timeout)) {
  peer_watch_.emplace(*backend_, wait_interrupter_, kFailures);
}

NodeLink::~NodeLink() {
  if (!is_closed() && !is_aborted_.load()) peer_watch_->say_left();
  close();
}

Result<NodeLink::WorkPtr> NodeLink::start_send(int to,
                                               const void* data,
                                               std::size_t bytes,
                                               int tag) {
  if (is_aborted_.load() || is_closed())
    return Error(ErrorCode::kPeerLost, "the group has met an error before");
  try {
    std::vector<at::Tensor> tensors = {tensor_on(data, bytes)};
    return backend_->send(tensors, to, tag);
  } catch (const std::exception& cause) {
    return gloo_error(to, cause.what());
  }
}

Result<NodeLink::WorkPtr> NodeLink::start_receive(int from,
                                                  void* data,
                                                  std::size_t bytes,
                                                  int tag) {
  if (is_aborted_.load() || is_closed())
    return Error(ErrorCode::kPeerLost, "the group has met an error before");
  try {
    std::vector<at::Tensor> tensors = {tensor_on(data, bytes)};
    return from == shm::kAnyRank ? backend_->recvAnysource(tensors, tag)
                                 : backend_->recv(tensors, from, tag);
  } catch (const std::exception& cause) {
    return gloo_error(from, cause.what());
  }
}

// ---- waiting ----

NodeLink::Wait NodeLink::wait_for(int peer) const {
  return wait_until(peer, Clock::now() + timeout_);
}

NodeLink::Wait NodeLink::wait_until(int peer, Clock::time_point deadline) {
  return {.peer = peer, .deadline = deadline, .looked = Clock::now()};
}

Result<void> NodeLink::finish(const WorkPtr& work, Wait wait) {
  for (;;) {
    const auto most = wait.is_lost ? kLastBytes : kLookEvery;
    const Result<bool> done =
        is_done(work, wait, shm::wait_slice(most, wait.deadline - Clock::now()));
    if (!done) return done.error();
    if (*done) return {};
  }
}

Result<bool> NodeLink::is_done(const WorkPtr& work, Wait& wait, std::chrono::microseconds at_most) {
  try {
    if (!is_aborted_.load() && wait_interrupter_.wait(work, at_most)) return true;
  } catch (const std::exception& cause) {
    return gloo_error(wait.peer, cause.what());
  }
  if (auto reason = reason_to_give_up(wait)) return *std::move(reason);
  return false;
}

std::optional<Error> NodeLink::reason_to_give_up(Wait& wait) {
  if (is_aborted_.load()) return Error(ErrorCode::kPeerLost, kAborted);
  if (wait.is_lost) return loss_of(wait.peer, "");
  const auto now = Clock::now();
  if (now >= wait.deadline) return lateness_of(wait.peer);
  if (now - wait.looked >= kLookEvery) {
    wait.looked = now;
    wait.is_lost = is_lost(wait.peer);
  }
  return {};
}

bool NodeLink::is_lost(int peer) {
  return is_in_vain(peer, peer_watch_->look(), num_others());
}

// ---- exchanges ----

Result<void> NodeLink::exchange(const shm::Call& call,
                                std::span<const Outgoing> out,
                                std::span<const Incoming> in) {
  auto begun = begin(call, out, in);
  return begun ? finish(*begun) : std::move(begun).error();
}

Result<NodeLink::ExchangePtr> NodeLink::begin(const shm::Call& call,
                                              std::span<const Outgoing> out,
                                              std::span<const Incoming> in) {
  auto begun_one = std::make_shared<Exchange>();
  Exchange& exchange = *begun_one;
  exchange.call = call;
  exchange.in.assign(in.begin(), in.end());
  const auto start = [](std::vector<Exchange::Started>& list,
                        Result<WorkPtr> work,
                        int peer,
                        at::Tensor room) -> Result<void> {
    if (!work) return std::move(work).error();
    list.push_back({std::move(room), *std::move(work), peer});
    return {};
  };
  auto& rests = exchange.rests;
  // What is awaited first: a transfer whose place is known leaves at once.
  for (const Incoming& transfer : in) {
    at::Tensor room = room_for_beginning(kSmallBytes);  // whatever comes
    auto work = start_receive(transfer.from, room.data_ptr(), room.nbytes(), kBeginning);
    if (auto begun = start(exchange.beginnings_in, std::move(work), transfer.from, room); !begun)
      return std::move(begun).error();
    if (is_small(transfer.bytes)) continue;
    const std::int32_t tag = tag_of_rest({.call = call, .bytes = transfer.bytes});
    auto rest = start_receive(transfer.from, transfer.data, transfer.bytes, tag);
    if (auto begun = start(rests, std::move(rest), transfer.from, {}); !begun)
      return std::move(begun).error();
  }
  for (const Outgoing& transfer : out) {
    at::Tensor room = beginning_of(call, transfer);
    auto work = start_send(transfer.to, room.data_ptr(), room.nbytes(), kBeginning);
    if (auto begun = start(exchange.beginnings_out, std::move(work), transfer.to, room); !begun)
      return std::move(begun).error();
    if (is_small(transfer.bytes)) continue;
    const std::int32_t tag = tag_of_rest({.call = call, .bytes = transfer.bytes});
    auto rest = start_send(transfer.to, transfer.data, transfer.bytes, tag);
    if (auto begun = start(rests, std::move(rest), transfer.to, {}); !begun)
      return std::move(begun).error();
  }
  return begun_one;
}

// After an error nobody is waited for, but what is there already may be its cause: another call names it better than the
// connection that was closed over it.
Result<void> NodeLink::take_beginnings(Exchange& exchange) {
  Result<void> loss;
  Result<void> difference;
  std::vector<int> who_differ;
  std::optional<Clock::time_point> last_words;  // of all that are left
  for (std::size_t i = 0; i < exchange.in.size(); ++i) {
    const Incoming& expected = exchange.in[i];
    const Exchange::Started& started = exchange.beginnings_in[i];
    const bool is_well = loss && difference;
    if (!is_well && !last_words) last_words = Clock::now() + kLastWords;
    auto came =
        finish(started.work,
               last_words ? wait_until(expected.from, *last_words) : wait_for(expected.from));
    if (!came) {
      if (loss) loss = std::move(came);
      continue;
    }
    Beginning beginning;
    const auto* const room = static_cast<const std::byte*>(started.room.data_ptr());
    std::memcpy(&beginning, room, sizeof beginning);
    if (beginning.call != exchange.call) who_differ.push_back(expected.from);
    if (auto same = check_beginning(exchange.call, expected, beginning); !same) {
      if (difference) difference = std::move(same);
      continue;
    }
    if (is_small(expected.bytes) && expected.bytes > 0)
      std::memcpy(expected.data, room + sizeof beginning, expected.bytes);
  }
  part_from(who_differ);
  return difference ? std::move(loss) : std::move(difference);
}

// What goes wrong here is no news.
void NodeLink::part_from(const std::vector<int>& peers) {
  std::byte nothing;
  std::vector<std::pair<WorkPtr, int>> partings;
  for (const int peer : peers) {
    if (auto sent = start_send(peer, &nothing, 0, kParting)) partings.emplace_back(*sent, peer);
    if (auto came = start_receive(peer, &nothing, 0, kParting)) partings.emplace_back(*came, peer);
  }
  const auto deadline = Clock::now() + kLastWords;
  for (const auto& [work, peer] : partings) (void)finish(work, wait_until(peer, deadline));
}

Result<void> NodeLink::finish(const ExchangePtr& exchange) {
  // Before anything is compared: who differs shall hear it from its own comparison.
  for (const auto& beginning : exchange->beginnings_out) {
    if (auto sent = finish(beginning.work, wait_for(beginning.peer)); !sent) return sent;
  }
  if (auto came = take_beginnings(*exchange); !came) return came;
  for (const auto& rest : exchange->rests) {
    if (auto done = finish(rest.work, wait_for(rest.peer)); !done) return done;
  }
  return {};
}

// Transfers come meanwhile, whomever is waited for: at the deadline each that is there counts.
Result<std::vector<shm::Absent>> NodeLink::call_roll(const shm::Call& call,
                                                     std::span<const int> peers,
                                                     std::chrono::milliseconds timeout,
                                                     shm::RollCall roll_call) {
  auto deadline = Clock::now() + timeout;
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (const int peer : peers) {
    out.push_back({peer, nullptr, 0});
    in.push_back({peer, nullptr, 0});
  }
  const auto begun = begin(call, out, in);
  if (!begun) return begun.error();
  std::vector<shm::Absent> absent;
  Result<void> difference;
  std::vector<int> who_differ;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const Exchange::Started& started = (*begun)->beginnings_in[i];
    const auto came = finish(started.work, wait_until(in[i].from, deadline));
    if (is_aborted_.load()) return came ? Error(ErrorCode::kPeerLost, kAborted) : came.error();
    if (!came) {
      const std::vector<RankEnd>& ends = peer_watch_->look();
      const auto end = std::ranges::find(ends, in[i].from, &RankEnd::rank);
      const bool has_ended = end != ends.end();
      if (has_ended && roll_call == shm::RollCall::kUntilFirstLoss)
        deadline = std::min(deadline, Clock::now() + kLastBytes);
      std::string why;
      if (has_ended) why = end->has_left ? kHasLeft : kHasEnded;
      absent.push_back({.rank = in[i].from, .why = std::move(why)});
      continue;
    }
    Beginning beginning;
    std::memcpy(&beginning, started.room.data_ptr(), sizeof beginning);
    if (beginning.call != call) who_differ.push_back(in[i].from);
    if (difference) difference = check_beginning(call, in[i], beginning);
  }
  part_from(who_differ);
  if (!difference) return std::move(difference).error();
  return absent;
}

// ---- messages ----

Result<void> NodeLink::post(const shm::TransferPtr& transfer) {
  if (transfer->tag < 0 || transfer->tag >= kFirstOwnTag) {
    return Error(ErrorCode::kInvalidArgument,
                 "a message has the tag " + std::to_string(transfer->tag) + ", expected 0 to " +
                     std::to_string(kFirstOwnTag - 1));
  }
  auto work = transfer->is_sent
                  ? start_send(transfer->peer, transfer->data, transfer->bytes, transfer->tag)
                  : start_receive(transfer->peer, transfer->data, transfer->bytes, transfer->tag);
  if (!work) return std::move(work).error();
  transfers_.emplace(transfer, Posted{.work = *std::move(work), .wait = wait_for(transfer->peer)});
  return {};
}

Result<bool> NodeLink::is_done(const shm::TransferPtr& transfer) {
  if (transfer->is_done) return true;
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end())
    return Error(ErrorCode::kPeerLost, "the group has met an error before");
  Posted& posted = found->second;
  Result<bool> done = is_done(posted.work, posted.wait, kGlance);
  if (done && *done) settle(transfer);
  return done;
}

Result<void> NodeLink::wait(const shm::TransferPtr& transfer) {
  if (transfer->is_done) return {};
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end())
    return Error(ErrorCode::kPeerLost, "the group has met an error before");
  Result<void> done = finish(found->second.work, wait_for(transfer->peer));
  if (done) settle(transfer);
  return done;
}

void NodeLink::settle(const shm::TransferPtr& transfer) {
  const auto found = transfers_.find(transfer);
  if (transfer->peer == shm::kAnyRank) transfer->peer = found->second.work->sourceRank();
  transfer->is_done = true;
  transfers_.erase(found);
}

// ---- the end ----

void NodeLink::abort() noexcept {
  is_aborted_.store(true);
  wait_interrupter_.end_wait();
}

int NodeLink::num_others() const {
  return backend_->getSize() - 1;
}

// Who is lost may be lost by another one's error or death, which is heard of in a moment.
GroupFailure NodeLink::find_cause(const Error& error) {
  const bool is_followed = error.code() == ErrorCode::kPeerLost && !is_aborted_.load();
  const auto deadline = Clock::now() + kLastWords;
  const auto is_heard_of = [&] {
    const std::vector<RankEnd>& ends = peer_watch_->look();
    return std::ssize(ends) == num_others() || !std::ranges::all_of(ends, &RankEnd::has_left);
  };
  while (is_followed && !is_heard_of() && Clock::now() < deadline)
    std::this_thread::sleep_for(kLastWordsPause);
  return cause_of(rank_, error, peer_watch_->look());
}

Error NodeLink::end(Error error) {
  if (is_closed()) return error;
  const GroupFailure cause = find_cause(error);
  peer_watch_->say(cause);
  close();
  return error_for(rank_, error, cause);
}

void NodeLink::close() noexcept {
  transfers_.clear();
  peer_watch_.reset();
  backend_.reset();
}

}  // namespace accel

#include "libaccel/collectives/node_link.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "libaccel/collectives/shm/call.h"

namespace accel {
namespace {

constexpr std::int32_t kBeginning = NodeLink::kFirstOwnTag;
constexpr std::int32_t kRest = NodeLink::kFirstOwnTag + 1;

// Copying so much costs less than the trip that it saves.
constexpr std::size_t kSmallBytes = 16 * 1024;

struct Beginning {
  shm::Call call;
  std::uint64_t bytes = 0;  // of the letter
};
static_assert(std::is_trivially_copyable_v<Beginning>);

bool is_small(std::size_t bytes) {
  return bytes <= kSmallBytes;
}

std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

std::string line_of(const char* what) {
  const std::string_view text = what;
  return std::string(text.substr(0, text.find('\n')));
}

// Of what the backend throws.
Error loss_of(int peer, const char* what) {
  const std::string said = line_of(what);
  const std::string who = peer >= 0 ? rank_text(peer) + " of another node" : "another rank";
  if (said.find("imed out") != std::string::npos || said.find("timeout") != std::string::npos) {
    return Error(ErrorCode::kPeerLost,
                 who + " did not come within the timeout",
                 "check that every rank calls the same collectives; raise "
                 "InitProcessGroupKwargs.timeout for slow ranks");
  }
  return Error(ErrorCode::kPeerLost, who + " has ended or met an error (" + said + ")");
}

// A tensor that stands for memory which somebody else holds.
at::Tensor tensor_on(const void* data, std::size_t bytes) {
  static std::byte nothing;
  void* const memory = bytes > 0 ? const_cast<void*>(data) : &nothing;
  return at::from_blob(memory, {static_cast<std::int64_t>(bytes)}, at::kByte);
}

at::Tensor room_for_beginning(std::size_t small) {
  return at::empty({static_cast<std::int64_t>(sizeof(Beginning) + small)}, at::kByte);
}

at::Tensor beginning_of(const shm::Call& call, const NodeLink::Outgoing& letter) {
  const std::size_t small = is_small(letter.bytes) ? letter.bytes : 0;
  const Beginning beginning = {.call = call, .bytes = letter.bytes};
  at::Tensor room = room_for_beginning(small);
  auto* const begin = static_cast<std::byte*>(room.data_ptr());
  std::memcpy(begin, &beginning, sizeof beginning);
  if (small > 0) std::memcpy(begin + sizeof beginning, letter.data, small);
  return room;
}

Result<void> compare(const shm::Call& call,
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

NodeLink::NodeLink(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}
NodeLink::~NodeLink() = default;

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
    return loss_of(to, cause.what());
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
    return loss_of(from, cause.what());
  }
}

Result<void> NodeLink::finish(const WorkPtr& work, int peer) {
  {
    const std::lock_guard lock(mutex_);
    waited_ = work;
  }
  Result<void> done;
  try {
    if (is_aborted_.load() || !work->wait())
      done = Error(ErrorCode::kPeerLost, "the group was aborted by this process");
  } catch (const std::exception& cause) {
    done = loss_of(peer, cause.what());
  }
  const std::lock_guard lock(mutex_);
  waited_.reset();
  return done;
}

Result<void> NodeLink::exchange(const shm::Call& call,
                                std::span<const Outgoing> out,
                                std::span<const Incoming> in) {
  struct Started {
    WorkPtr work;
    int peer;
    at::Tensor room;  // of a beginning
  };
  std::vector<Started> beginnings_in;
  std::vector<Started> beginnings_out;
  std::vector<Started> rests;
  const auto start = [](std::vector<Started>& list,
                        Result<WorkPtr> work,
                        int peer,
                        at::Tensor room) -> Result<void> {
    if (!work) return std::move(work).error();
    list.push_back({*std::move(work), peer, std::move(room)});
    return {};
  };
  for (const Incoming& letter : in) {
    at::Tensor room = room_for_beginning(kSmallBytes);
    auto work = start_receive(letter.from, room.data_ptr(), room.nbytes(), kBeginning);
    if (auto begun = start(beginnings_in, std::move(work), letter.from, room); !begun) return begun;
  }
  for (const Outgoing& letter : out) {
    at::Tensor room = beginning_of(call, letter);
    auto work = start_send(letter.to, room.data_ptr(), room.nbytes(), kBeginning);
    if (auto begun = start(beginnings_out, std::move(work), letter.to, room); !begun) return begun;
    if (is_small(letter.bytes)) continue;
    auto rest = start_send(letter.to, letter.data, letter.bytes, kRest);
    if (auto begun = start(rests, std::move(rest), letter.to, {}); !begun) return begun;
  }
  // Before anything is compared: who differs shall hear it from its own comparison.
  for (const Started& beginning : beginnings_out) {
    if (auto sent = finish(beginning.work, beginning.peer); !sent) return sent;
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (auto came = finish(beginnings_in[i].work, in[i].from); !came) return came;
    Beginning beginning;
    const auto* const room = static_cast<const std::byte*>(beginnings_in[i].room.data_ptr());
    std::memcpy(&beginning, room, sizeof beginning);
    if (auto same = compare(call, in[i], beginning); !same) return same;
    if (is_small(in[i].bytes)) {
      if (in[i].bytes > 0) std::memcpy(in[i].data, room + sizeof beginning, in[i].bytes);
      continue;
    }
    auto rest = start_receive(in[i].from, in[i].data, in[i].bytes, kRest);
    if (auto begun = start(rests, std::move(rest), in[i].from, {}); !begun) return begun;
  }
  for (const Started& rest : rests) {
    if (auto done = finish(rest.work, rest.peer); !done) return done;
  }
  return {};
}

Result<void> NodeLink::post(const shm::LetterPtr& letter) {
  if (letter->tag < 0 || letter->tag >= kFirstOwnTag) {
    return Error(ErrorCode::kInvalidArgument,
                 "a message has the tag " + std::to_string(letter->tag) + ", expected 0 to " +
                     std::to_string(kFirstOwnTag - 1));
  }
  auto work = letter->is_sent
                  ? start_send(letter->peer, letter->data, letter->bytes, letter->tag)
                  : start_receive(letter->peer, letter->data, letter->bytes, letter->tag);
  if (!work) return std::move(work).error();
  letters_.emplace(letter, *std::move(work));
  return {};
}

Result<void> NodeLink::wait(const shm::LetterPtr& letter) {
  if (letter->is_done) return {};
  const auto found = letters_.find(letter);
  if (found == letters_.end())
    return Error(ErrorCode::kPeerLost, "the group has met an error before");
  const WorkPtr work = found->second;
  if (auto done = finish(work, letter->peer); !done) return done;
  if (letter->peer == shm::kAnyRank) letter->peer = work->sourceRank();
  letter->is_done = true;
  letters_.erase(letter);
  return {};
}

void NodeLink::abort() noexcept {
  is_aborted_.store(true);
  const std::lock_guard lock(mutex_);
  if (waited_) waited_->abort();
}

void NodeLink::close() noexcept {
  letters_.clear();
  backend_.reset();
}

}  // namespace accel

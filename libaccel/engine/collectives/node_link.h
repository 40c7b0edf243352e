// NodeLink: what a rank exchanges with ranks of other nodes, over a c10d backend that knows messages (Gloo).
//
// An exchange is one transfer to each of some ranks and one from each of some. A transfer begins with what its sender calls,
// so ranks that call different things, or the same with other sizes, are told so. What is small travels with that beginning;
// the rest goes beside it, straight into the receiver's memory.
//
//   sender                                          receiver
//   [call | size | small bytes] ------------------> compares; takes small bytes
//   [the bytes, when they are many], by tag ------> into their place
//
// The tag of the rest is drawn from the call and the size: ranks that differ do not meet there, where Gloo would end the
// process over a size. Ranks that find that they call different things tell each other so before they close.
//
// Who waits looks around every 0.1 s (peer_watch.h): an exchange is over when a rank that it needs has closed its connections,
// or any rank has said why the group is. A rank that met an error says it to all and closes its own (end()): so an error on
// one node reaches all nodes, with its cause. One that leaves in order says so too: the others' messages go on without it.
//
// Threads:  one thread at a time, except abort(). A thread of its own ends waits for those looks (wait_interrupter.h).
// Errors    kPeerLost: a rank has ended or met an error, or answered nothing within the timeout; kShapeMismatch.
// Source:   tests/unit/libaccel/collectives/two_level_group_test.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <accel/result.h>

#include "libaccel/engine/collectives/communication_thread.h"
#include "libaccel/engine/collectives/peer_watch.h"
#include "libaccel/engine/collectives/wait_interrupter.h"
#include "libaccel/engine/shm/group/point_to_point.h"
#include "libaccel/engine/shm/group/roll_call.h"
#include "libaccel/engine/shm/memory/call.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace accel {

class NodeLink {
 public:
  struct Outgoing {
    int to = 0;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Incoming {
    int from = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  // An exchange that goes on. What it was begun with must stay until it is finished, or let go of after an error.
  struct Exchange;
  using ExchangePtr = std::shared_ptr<Exchange>;

  // Nobody else may send with the tags from kFirstOwnTag on. timeout: of a wait for another rank; none: the backend's.
  // Throws kProcessGroup when no thread can be started. Requires: every rank of the backend makes one.
  explicit NodeLink(c10::intrusive_ptr<c10d::Backend> backend,
                    std::optional<std::chrono::milliseconds> timeout = {});
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  static constexpr std::int32_t kFirstOwnTag = 1 << 30;

  // Comes back when all of it is there. Memory of `out` and `in` must not overlap. Every rank named must call it too.
  [[nodiscard]] Result<void> exchange(const shm::Call& call,
                                      std::span<const Outgoing> out,
                                      std::span<const Incoming> in);
  // The same in two parts: begin() waits for nobody, and the bytes move while the caller does something else.
  [[nodiscard]] Result<ExchangePtr> begin(const shm::Call& call,
                                          std::span<const Outgoing> out,
                                          std::span<const Incoming> in);
  [[nodiscard]] Result<void> finish(const ExchangePtr& exchange);

  // Waits for at most `timeout` until all of the peers have called it too. Who has not; empty: all have. Once one is known to be
  // lost the others are waited for when the roll call is of all. Errors  kShapeMismatch; kPeerLost: abort().
  [[nodiscard]] Result<std::vector<shm::Absent>> call_roll(const shm::Call& call,
                                                           std::span<const int> peers,
                                                           std::chrono::milliseconds timeout,
                                                           shm::RollCall roll_call);

  // Messages of users. The backend tells of their end to those who wait only, so is_done() waits for 0.1 ms when it is false;
  // after true, wait() comes back at once. The timeout of is_done() counts from post(), that of wait() from wait().
  [[nodiscard]] Result<void> post(const shm::TransferPtr& transfer);
  [[nodiscard]] Result<bool> is_done(const shm::TransferPtr& transfer);
  [[nodiscard]] Result<void> wait(const shm::TransferPtr& transfer);

  // Of all groups that stand on the link, for collectives that go on beside the thread that trains.
  [[nodiscard]] const std::shared_ptr<CommunicationThread>& thread() const noexcept {
    return thread_;
  }

  // Ends what waits in another thread. Any thread.
  void abort() noexcept;
  // After an error of this rank: finds out its cause, for half a second at most when another rank is lost; tells all others;
  // closes all connections of this rank. The error as it is to be thrown. Of the thread that uses the link.
  [[nodiscard]] Error end(Error error);

 private:
  using WorkPtr = WaitInterrupter::WorkPtr;
  using Clock = std::chrono::steady_clock;

  // A wait for a rank, or for any.
  struct Wait {
    int peer = 0;
    Clock::time_point deadline;
    Clock::time_point looked;
    bool is_lost = false;  // what is not there at the next look does not come
  };
  struct Posted {
    WorkPtr work;
    Wait wait;
  };

  [[nodiscard]] Result<WorkPtr> start_send(int to, const void* data, std::size_t bytes, int tag);
  [[nodiscard]] Result<WorkPtr> start_receive(int from, void* data, std::size_t bytes, int tag);
  [[nodiscard]] Wait wait_for(int peer) const;
  [[nodiscard]] static Wait wait_until(int peer, Clock::time_point deadline);
  [[nodiscard]] Result<void> finish(const WorkPtr& work, Wait wait);
  // Whether it is done within `at_most`, or why it never will be.
  [[nodiscard]] Result<bool> is_done(const WorkPtr& work,
                                     Wait& wait,
                                     std::chrono::microseconds at_most);
  [[nodiscard]] std::optional<Error> reason_to_give_up(Wait& wait);
  [[nodiscard]] bool is_lost(int peer);
  void settle(const shm::TransferPtr& transfer);
  // The beginnings of all transfers, compared. kShapeMismatch before any loss that comes of it.
  [[nodiscard]] Result<void> take_beginnings(Exchange& exchange);
  // Tells ranks that call something else that their calls were seen, and waits until they have seen ours.
  void part_from(const std::vector<int>& peers);
  [[nodiscard]] GroupFailure find_cause(const Error& error);
  [[nodiscard]] int num_others() const;
  void close() noexcept;
  [[nodiscard]] bool is_closed() const noexcept { return !backend_; }

  std::shared_ptr<CommunicationThread> thread_ = std::make_shared<CommunicationThread>();
  WaitInterrupter wait_interrupter_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::optional<PeerWatch> peer_watch_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::unordered_map<shm::TransferPtr, Posted> transfers_;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace accel

// NodeLink: what a rank exchanges with ranks of other nodes, over a c10d backend that knows messages (Gloo).
//
// An exchange is one letter to each of some ranks and one from each of some. A letter begins with what its sender calls,
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
// A connection that closes is an error of the exchange that needs it. close() closes those of this rank: so one that met
// an error is seen by all who wait for it, and an error on one node reaches all nodes.
//
// Threads:  one thread at a time, except abort().
// Errors    kPeerLost: a rank has ended or met an error, or answered nothing within the timeout; kShapeMismatch.
// Source:   tests/unit/libaccel/collectives/two_level_group_test.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <accel/result.h>

#include "libaccel/collectives/shm/call.h"
#include "libaccel/collectives/shm/mail.h"

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

  // Nobody else may send with the tags from kFirstOwnTag on.
  explicit NodeLink(c10::intrusive_ptr<c10d::Backend> backend);
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

  // Messages of users. The backend tells of their end to those who wait only: the first is_done() of a letter starts a thread
  // that does. is_done() waits for nobody; after true, wait() does not either.
  [[nodiscard]] Result<void> post(const shm::LetterPtr& letter);
  [[nodiscard]] Result<bool> is_done(const shm::LetterPtr& letter);
  [[nodiscard]] Result<void> wait(const shm::LetterPtr& letter);

  // Ends what waits in another thread. Any thread.
  void abort() noexcept;
  // Closes all connections of this rank. Of the thread that uses the link.
  void close() noexcept;
  [[nodiscard]] bool is_closed() const noexcept { return !backend_; }

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  struct Posted {
    WorkPtr work;
    std::future<Result<void>> watch;  // valid once somebody has asked
  };

  [[nodiscard]] Result<WorkPtr> start_send(int to, const void* data, std::size_t bytes, int tag);
  [[nodiscard]] Result<WorkPtr> start_receive(int from, void* data, std::size_t bytes, int tag);
  [[nodiscard]] Result<void> finish(const WorkPtr& work,
                                    int peer,
                                    std::chrono::milliseconds at_most);
  // The beginnings of all letters, compared. kShapeMismatch before any loss that comes of it.
  [[nodiscard]] Result<void> take_beginnings(Exchange& exchange);
  [[nodiscard]] Result<void> finish(Posted& posted, int peer);
  // Tells ranks that call something else that their calls were seen, and waits until they have seen ours.
  void part_from(const std::vector<int>& peers);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::unordered_map<shm::LetterPtr, Posted> letters_;
  std::mutex mutex_;  // of waited_
  WorkPtr waited_;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace accel

// QueuedGroup: a group whose calls may also be made by a CommunicationThread, in the order of the program.
//
// A call waits until the thread has made those that were begun before it. Groups that stand on the same connections or the same
// memory (a group over nodes, its parts, the ranks of its node) have one thread between them.
//
// Threads:  as ByteGroup.
// Errors    those of the group; a call that was begun says its own to who waits for it.
// Source:   tests/unit/libaccel/collectives/queued_group_test.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "libaccel/engine/collectives/communication_thread.h"
#include "libaccel/engine/shm/group/byte_group.h"

namespace accel {

class QueuedGroup final : public shm::ByteGroup {
 public:
  QueuedGroup(std::shared_ptr<shm::ByteGroup> group, std::shared_ptr<CommunicationThread> thread)
      : group_(std::move(group)), thread_(std::move(thread)) {}
  // Nobody waits any more for what was begun: it ends with an error, on all ranks.
  ~QueuedGroup() override;

  // Runs calls() with the group, on the thread. Throws as CommunicationThread::begin().
  [[nodiscard]] CommunicationThread::JobPtr begin(std::function<void(shm::ByteGroup&)> calls);
  [[nodiscard]] const std::shared_ptr<CommunicationThread>& thread() const noexcept {
    return thread_;
  }

  [[nodiscard]] int rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return group_->world_size(); }
  [[nodiscard]] Result<void> barrier() override { return in_turn().barrier(); }
  [[nodiscard]] Result<void> monitored_barrier(std::chrono::milliseconds timeout,
                                               shm::RollCall roll_call) override {
    return in_turn().monitored_barrier(timeout, roll_call);
  }
  [[nodiscard]] Result<void> all_reduce(const std::byte* in,
                                        std::byte* out,
                                        std::size_t count,
                                        shm::DataType type,
                                        shm::ReduceOp op) override {
    return in_turn().all_reduce(in, out, count, type, op);
  }
  [[nodiscard]] Result<void> reduce(const std::byte* in,
                                    std::byte* out,
                                    std::size_t count,
                                    shm::DataType type,
                                    shm::ReduceOp op,
                                    int root) override {
    return in_turn().reduce(in, out, count, type, op, root);
  }
  [[nodiscard]] Result<void> reduce_scatter(std::span<const std::byte* const> in,
                                            std::byte* out,
                                            std::size_t count,
                                            shm::DataType type,
                                            shm::ReduceOp op) override {
    return in_turn().reduce_scatter(in, out, count, type, op);
  }
  [[nodiscard]] Result<bool> all_reduce_pieces(std::span<const shm::Piece> pieces,
                                               shm::DataType type,
                                               double factor) override {
    return in_turn().all_reduce_pieces(pieces, type, factor);
  }
  [[nodiscard]] Result<bool> reduce_scatter_pieces(std::span<const shm::Piece> pieces,
                                                   std::byte* out,
                                                   std::size_t count,
                                                   shm::DataType type,
                                                   double factor) override {
    return in_turn().reduce_scatter_pieces(pieces, out, count, type, factor);
  }
  [[nodiscard]] Result<void> broadcast(std::byte* data,
                                       std::size_t bytes,
                                       int root,
                                       std::string_view elements) override {
    return in_turn().broadcast(data, bytes, root, elements);
  }
  [[nodiscard]] Result<void> all_gather(const std::byte* in,
                                        std::span<std::byte* const> out,
                                        std::size_t bytes,
                                        std::string_view elements) override {
    return in_turn().all_gather(in, out, bytes, elements);
  }
  [[nodiscard]] Result<void> gather(const std::byte* in,
                                    std::span<std::byte* const> out,
                                    std::size_t bytes,
                                    int root,
                                    std::string_view elements) override {
    return in_turn().gather(in, out, bytes, root, elements);
  }
  [[nodiscard]] Result<void> scatter(std::span<const std::byte* const> in,
                                     std::byte* out,
                                     std::size_t bytes,
                                     int root,
                                     std::string_view elements) override {
    return in_turn().scatter(in, out, bytes, root, elements);
  }
  [[nodiscard]] Result<void> all_to_all(std::span<const std::span<const std::byte>> in,
                                        std::span<const std::span<std::byte>> out,
                                        std::string_view elements) override {
    return in_turn().all_to_all(in, out, elements);
  }
  [[nodiscard]] Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) override {
    return in_turn().allocate(bytes);
  }
  [[nodiscard]] std::atomic<std::uint64_t>* stop_word() noexcept override {
    return group_->stop_word();
  }
  [[nodiscard]] Result<void> post(const shm::TransferPtr& transfer) override {
    return in_turn().post(transfer);
  }
  [[nodiscard]] Result<bool> is_done(const shm::TransferPtr& transfer) override {
    return in_turn().is_done(transfer);
  }
  [[nodiscard]] Result<void> wait(const shm::TransferPtr& transfer) override {
    return in_turn().wait(transfer);
  }
  void abort() noexcept override { group_->abort(); }

 private:
  // The group, once the thread has nothing to do with it.
  [[nodiscard]] shm::ByteGroup& in_turn() noexcept {
    thread_->drain();
    return *group_;
  }

  std::shared_ptr<shm::ByteGroup> group_;  // also the jobs'
  std::shared_ptr<CommunicationThread> thread_;
};

}  // namespace accel

// TwoLevelGroup: the collectives of ranks on several nodes, in two levels.
//
// The ranks of a node share memory; between nodes each rank carries its share, to and from the ranks that have its place on
// the other nodes. A rank is (node, place); P ranks on each of N nodes, n bytes:
//
//   collective      inside the node           between the nodes                            inside the node
//   all_reduce      reduce_scatter            n/P are reduced among equal places           all_gather
//   reduce_scatter  one for each node         the part of each node goes there, reduced
//   reduce          reduce_scatter            n/P to the root's node, reduced              gather
//   broadcast       broadcast, root's node    n/P to the same place of other nodes         all_gather
//   all_gather                                own input to the same place everywhere       all_gather for each node
//   gather                                    own input to the root's node                 gather for each node
//   scatter         scatter for each node     what is theirs to the same place
//   all_to_all      all_to_all                pieces straight to their ranks, meanwhile
//   barrier         barrier                   an empty message
//   monitored barrier: an empty message from each rank to each, within a node too; then a barrier
//
// So a byte crosses the network once for each node that needs it, and all ranks of a node send at once. What is small (32 KiB)
// is not cut: inside the node all have the whole then, which saves two meetings.
//
// Sums are taken over the ranks of each node in their order, then over the nodes in theirs: the same bits on all ranks and
// from run to run, other ones than one node would give (docs/reference/numerics.md). float16 and bfloat16 are summed as float32,
// between the nodes too, and rounded once.
//
// Equal places of all nodes send each other a message in every collective, an empty one where nothing is to be sent, before
// any rank waits for another node's bytes: so nodes that call different things, or the same with another root, learn it.
//
// Messages go over the link, within a node too: a receiver from anybody waits in one place only.
//
// An error ends the group on all nodes: a rank that meets one says so to all, closes its connections and marks its node's
// memory, which those see who wait for it. So a rank that has died is named by all, wherever they are.
//
// Threads:  one thread at a time, except abort().
// Errors    those of ByteGroup; ranks are named by their numbers in the job.
// Source:   tests/unit/libaccel/collectives/two_level_group_test.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "libaccel/engine/collectives/node_layout.h"
#include "libaccel/engine/collectives/node_link.h"
#include "libaccel/engine/shm/group/byte_group.h"

namespace accel {

class TwoLevelGroup final : public shm::ByteGroup {
 public:
  struct Parts {
    int rank = 0;                          // in this group
    NodeLayout layout;                     // of this group; every node with as many ranks
    std::vector<int> names;                // of its ranks on the link and in errors
    std::shared_ptr<shm::ByteGroup> node;  // the ranks of this node, by place
    std::shared_ptr<NodeLink> link;
  };
  explicit TwoLevelGroup(Parts parts);
  ~TwoLevelGroup() override;

  [[nodiscard]] int rank() const noexcept override { return parts_.rank; }
  [[nodiscard]] int world_size() const noexcept override { return num_nodes_ * num_places_; }

  [[nodiscard]] Result<void> barrier() override;
  // Over the link, within a node too: so each rank hears itself who has not come.
  [[nodiscard]] Result<void> monitored_barrier(std::chrono::milliseconds timeout,
                                               shm::RollCall roll_call) override;
  [[nodiscard]] Result<void> all_reduce(const std::byte* in,
                                        std::byte* out,
                                        std::size_t count,
                                        shm::DataType type,
                                        shm::ReduceOp op) override;
  [[nodiscard]] Result<void> reduce(const std::byte* in,
                                    std::byte* out,
                                    std::size_t count,
                                    shm::DataType type,
                                    shm::ReduceOp op,
                                    int root) override;
  [[nodiscard]] Result<void> reduce_scatter(std::span<const std::byte* const> in,
                                            std::byte* out,
                                            std::size_t count,
                                            shm::DataType type,
                                            shm::ReduceOp op) override;
  [[nodiscard]] Result<void> broadcast(std::byte* data,
                                       std::size_t bytes,
                                       int root,
                                       std::string_view elements = {}) override;
  [[nodiscard]] Result<void> all_gather(const std::byte* in,
                                        std::span<std::byte* const> out,
                                        std::size_t bytes,
                                        std::string_view elements = {}) override;
  [[nodiscard]] Result<void> gather(const std::byte* in,
                                    std::span<std::byte* const> out,
                                    std::size_t bytes,
                                    int root,
                                    std::string_view elements = {}) override;
  [[nodiscard]] Result<void> scatter(std::span<const std::byte* const> in,
                                     std::byte* out,
                                     std::size_t bytes,
                                     int root,
                                     std::string_view elements = {}) override;
  [[nodiscard]] Result<void> all_to_all(std::span<const std::span<const std::byte>> in,
                                        std::span<const std::span<std::byte>> out,
                                        std::string_view elements = {}) override;
  [[nodiscard]] Result<void> post(const shm::TransferPtr& transfer) override;
  [[nodiscard]] Result<bool> is_done(const shm::TransferPtr& transfer) override;
  [[nodiscard]] Result<void> wait(const shm::TransferPtr& transfer) override;
  void abort() noexcept override;

 private:
  static constexpr std::size_t kWholeBytes = 32 * 1024;  // what is larger is cut

  // Memory that is kept for the next call.
  class Scratch {
   public:
    [[nodiscard]] std::byte* room(std::size_t bytes);

   private:
    std::unique_ptr<std::byte[]> memory_;
    std::size_t bytes_ = 0;
  };

  // After an error the group is over, on all nodes: the error as it is to be thrown.
  [[nodiscard]] Error end(Error error);
  [[nodiscard]] Result<void> settled(Result<void> done);
  [[nodiscard]] int rank_at(int node, int place) const;
  [[nodiscard]] int name_at(int node, int place) const;

  [[nodiscard]] Result<void> exchange(std::span<const NodeLink::Outgoing> out,
                                      std::span<const NodeLink::Incoming> in);
  // The same, with an empty message to and from the ranks with this place to or from whom there is none.
  [[nodiscard]] Result<void> exchange_with_all(std::vector<NodeLink::Outgoing> out,
                                               std::vector<NodeLink::Incoming> in);
  // The same of one who has something to do before it knows what to send: what the others call is on its way meanwhile.
  [[nodiscard]] Result<NodeLink::ExchangePtr> begin_hearing();
  [[nodiscard]] Result<void> send_to_all(const NodeLink::ExchangePtr& heard,
                                         std::span<const NodeLink::Outgoing> out);
  [[nodiscard]] Result<void> reduce_to_share(std::span<std::byte* const> parts,
                                             std::byte* mine,
                                             std::size_t each,
                                             shm::DataType type,
                                             shm::ReduceOp op);
  // Of what equal places of all nodes hold, in the order of the nodes, on all of them.
  [[nodiscard]] Result<void> reduce_between(std::byte* data,
                                            std::size_t count,
                                            shm::DataType type,
                                            shm::ReduceOp op);
  [[nodiscard]] Result<void> reduce_between_by_parts(std::byte* data,
                                                     std::size_t count,
                                                     shm::DataType type,
                                                     shm::ReduceOp op);
  // The same at one node. All ranks call it; those without data bring none.
  [[nodiscard]] Result<void> reduce_at(
      int node, std::byte* data, std::size_t count, shm::DataType type, shm::ReduceOp op);
  // operands[node], that of this node too.
  void reduce_nodes(std::span<const std::byte* const> operands,
                    std::size_t count,
                    shm::DataType type,
                    shm::ReduceOp op,
                    std::byte* out) const;

  // With sums in the type that sums are taken in.
  [[nodiscard]] Result<void> all_reduce_in_place(std::byte* data,
                                                 std::size_t count,
                                                 shm::DataType type,
                                                 shm::ReduceOp op);
  [[nodiscard]] Result<void> reduce_in_place(
      std::byte* data, std::size_t count, shm::DataType type, shm::ReduceOp op, int root);
  [[nodiscard]] Result<void> reduce_scatter_sums(std::span<const std::byte* const> in,
                                                 std::byte* out,
                                                 std::size_t count,
                                                 shm::DataType type,
                                                 shm::ReduceOp op);
  [[nodiscard]] Result<void> broadcast_whole(std::byte* data, std::size_t bytes, int root);
  [[nodiscard]] Result<void> broadcast_shares(std::byte* data, std::size_t each, int root);
  [[nodiscard]] Result<void> scatter_from_here(std::span<const std::byte* const> in,
                                               std::byte* out,
                                               std::size_t bytes,
                                               int root);

  Parts parts_;
  int num_nodes_;
  int num_places_;
  int node_;  // of this rank
  int place_;
  bool is_whole_job_ = true;  // ranks have the numbers that the link knows
  shm::Call call_;            // that goes on
  Scratch share_;
  Scratch incoming_;
  Scratch widened_;
};

}  // namespace accel

// Mesh: the ranks of a job as a grid, one axis for each way of dividing the work.
//
//   axis        the ranks along it have                          outermost first, as in Accelerate and torchtitan
//   kPipeline   other layers
//   kReplicate  the same parameters, other batches
//   kShard      other parts of parameters, other batches
//   kContext    other parts of each sequence, in attention too
//   kSequence   other parts of each sequence, outside of attention
//   kTensor     other parts of each operator
//   kData       kReplicate and kShard together: all that average their gradients
//
// Positions are in row-major order: neighbours differ in the last axis, as in PyTorch's DeviceMesh. Ranks are taken node by node
// where the nodes are known (ProcessGroup::layout()), so that what is innermost stays inside a node; or in their order, as there.
//
// The groups of all axes are made at once, in the order of MeshAxis. So no ranks wait for each other: of two that do, one would
// make an earlier group than the other, whose ranks wait for nobody who is at a later one. An axis as long as the job is the
// world itself, and makes no group; along one of length 1 a rank is alone, which costs something only when it is asked for.
//
// Threads:  as ProcessGroup.
// Cost:     for each other axis, two rounds through the store; see docs/internals/design.md for the memory.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace accel {

class ProcessGroup;

enum class MeshAxis { kPipeline, kReplicate, kShard, kContext, kSequence, kTensor, kData };
inline constexpr std::size_t kNumMeshAxes = 7;

struct MeshShape {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int context = 1;
  int sequence = 1;
  int tensor = 1;

  [[nodiscard]] int size(MeshAxis axis) const noexcept;
  [[nodiscard]] int num_ranks() const noexcept;
  // The positions along `axis` of that which `position` lies on. Pure.
  [[nodiscard]] std::vector<int> along(MeshAxis axis, int position) const;
};

// What a position is: they differ where a launcher deals ranks out to the nodes in turn.
enum class MeshOrder { kByNode, kByRank };

class Mesh {
 public:
  // Throws kInvalidArgument where the axes do not make as many ranks as there are, and what ProcessGroup::part() throws.
  // Requires: every rank of `world`, which was joined, calls it with the same shape.
  Mesh(std::shared_ptr<ProcessGroup> world,
       const MeshShape& shape,
       MeshOrder order = MeshOrder::kByNode);

  [[nodiscard]] int size(MeshAxis axis) const noexcept { return shape_.size(axis); }
  // The ranks that differ from this one in the axis alone. Never nullptr.
  [[nodiscard]] const std::shared_ptr<ProcessGroup>& group(MeshAxis axis);
  // Those over which the parameters of a model are divided: what is computed of parts (norms, overflow) is combined over one
  // after the other. None: each rank has all.
  [[nodiscard]] std::vector<std::shared_ptr<ProcessGroup>> dividing_groups();

 private:
  std::shared_ptr<ProcessGroup> world_;
  MeshShape shape_;
  std::array<std::shared_ptr<ProcessGroup>, kNumMeshAxes> groups_;
};

}  // namespace accel

#include "libaccel/engine/process/mesh.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace {

constexpr MeshAxis kMadeAxes[] = {MeshAxis::kPipeline,
                                  MeshAxis::kReplicate,
                                  MeshAxis::kShard,
                                  MeshAxis::kContext,
                                  MeshAxis::kSequence,
                                  MeshAxis::kTensor,
                                  MeshAxis::kData};
static_assert(std::size(kMadeAxes) == kNumMeshAxes);

std::string axes_text(const MeshShape& shape) {
  return "pipeline " + std::to_string(shape.pipeline) + " x replicate " +
         std::to_string(shape.replicate) + " x shard " + std::to_string(shape.shard) +
         " x context " + std::to_string(shape.context) + " x sequence " +
         std::to_string(shape.sequence) + " x tensor " + std::to_string(shape.tensor);
}

void check_shape(const MeshShape& shape, int num_ranks) {
  const bool is_positive = std::all_of(std::begin(kMadeAxes),
                                       std::end(kMadeAxes),
                                       [&](MeshAxis axis) { return shape.size(axis) > 0; });
  if (is_positive && shape.num_ranks() == num_ranks) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the axes " + axes_text(shape) + " do not make the " + std::to_string(num_ranks) +
                  " ranks of the job",
              "give axes of 1 or more whose product is the number of ranks");
}

// Between two neighbours along it: what lies further in.
int stride_of(const MeshShape& shape, MeshAxis axis) {
  int stride = 1;
  const MeshAxis innermost = axis == MeshAxis::kData ? MeshAxis::kShard : axis;
  for (MeshAxis inner = MeshAxis::kTensor; inner != innermost;
       inner = static_cast<MeshAxis>(static_cast<int>(inner) - 1)) {
    stride *= shape.size(inner);
  }
  return stride;
}

}  // namespace

int MeshShape::size(MeshAxis axis) const noexcept {
  switch (axis) {
    case MeshAxis::kPipeline:
      return pipeline;
    case MeshAxis::kReplicate:
      return replicate;
    case MeshAxis::kShard:
      return shard;
    case MeshAxis::kContext:
      return context;
    case MeshAxis::kSequence:
      return sequence;
    case MeshAxis::kTensor:
      return tensor;
    case MeshAxis::kData:
      break;
  }
  return replicate * shard;
}

int MeshShape::num_ranks() const noexcept {
  return pipeline * replicate * shard * context * sequence * tensor;
}

std::vector<int> MeshShape::along(MeshAxis axis, int position) const {
  const int stride = stride_of(*this, axis);
  const int first = position - position / stride % size(axis) * stride;
  std::vector<int> positions;
  for (int i = 0; i < size(axis); ++i) positions.push_back(first + i * stride);
  return positions;
}

Mesh::Mesh(std::shared_ptr<ProcessGroup> world, const MeshShape& shape, MeshOrder order)
    : world_(std::move(world)), shape_(shape) {
  check_shape(shape, world_->size());
  std::vector<int> ranks;  // by position
  for (const std::vector<int>& node : world_->layout().nodes)
    ranks.insert(ranks.end(), node.begin(), node.end());
  if (order == MeshOrder::kByRank) std::sort(ranks.begin(), ranks.end());
  const auto position =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), world_->rank()) - ranks.begin());
  std::map<std::vector<int>, std::shared_ptr<ProcessGroup>> made;
  for (const MeshAxis axis : kMadeAxes) {
    auto& group = groups_[static_cast<std::size_t>(axis)];
    if (size(axis) == world_->size()) group = world_;
    if (group != nullptr || size(axis) == 1) continue;
    std::vector<int> members;
    for (const int other : shape.along(axis, position))
      members.push_back(ranks[static_cast<std::size_t>(other)]);
    group = made[members];
    if (group == nullptr) group = made[members] = world_->part(members);
  }
}

const std::shared_ptr<ProcessGroup>& Mesh::group(MeshAxis axis) {
  auto& group = groups_[static_cast<std::size_t>(axis)];
  if (group == nullptr) group = world_->part({world_->rank()});
  return group;
}

std::vector<std::shared_ptr<ProcessGroup>> Mesh::dividing_groups() {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (const MeshAxis axis : {MeshAxis::kShard, MeshAxis::kTensor, MeshAxis::kPipeline}) {
    if (size(axis) > 1) groups.push_back(group(axis));
  }
  return groups;
}

}  // namespace accel

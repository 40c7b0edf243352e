#include <algorithm>
#include <span>
#include <utility>

#include <accel/device_mesh.h>
#include <accel/error.h>

#include "runtime/text/joined.h"

namespace accel {
namespace {

constexpr std::string_view kDataAxes[] = {"dp_replicate", "dp_shard"};
constexpr std::string_view kShardingAxes[] = {"dp_shard", "cp"};
constexpr std::string_view kLossAxes[] = {"dp_replicate", "dp_shard", "cp"};

constexpr std::pair<std::string_view, std::span<const std::string_view>> kJointAxes[] = {
    {"dp", kDataAxes}, {"dp_shard_cp", kShardingAxes}, {"dp_cp", kLossAxes}};

struct MeshPlace {
  int rank = 0;
  int size = 1;
  bool is_found = false;
};

MeshPlace place_along(const DeviceMesh& mesh, std::span<const std::string_view> axes) {
  MeshPlace place;
  for (std::size_t i = 0; i < mesh.mesh_dim_names.size(); ++i) {
    if (std::ranges::find(axes, mesh.mesh_dim_names[i]) == axes.end()) continue;
    place.rank = place.rank * mesh.shape[i] + mesh.coordinate[i];
    place.size *= mesh.shape[i];
    place.is_found = true;
  }
  return place;
}

MeshPlace place_along(const DeviceMesh& mesh, std::string_view name) {
  MeshPlace place = place_along(mesh, std::span(&name, 1));
  for (const auto& [joint, axes] : kJointAxes) {
    if (joint == name) place = place_along(mesh, axes);
  }
  if (place.is_found) return place;
  throw Error(ErrorCode::kInvalidArgument,
              "the device mesh has no axis '" + std::string(name) + "'; it has " +
                  (mesh.mesh_dim_names.empty() ? "none" : joined(mesh.mesh_dim_names, ", ")),
              "an axis is there where its size in the ParallelismConfig is above 1");
}

}  // namespace

int DeviceMesh::size(std::string_view mesh_dim) const {
  return place_along(*this, mesh_dim).size;
}

int DeviceMesh::get_local_rank(std::string_view mesh_dim) const {
  return place_along(*this, mesh_dim).rank;
}

int DeviceMesh::size() const noexcept {
  int product = 1;
  for (const int along : shape) product *= along;
  return product;
}

DataShare data_share(const DeviceMesh& mesh) noexcept {
  const MeshPlace place = place_along(mesh, kDataAxes);
  return {.index = place.rank, .count = place.size};
}

}  // namespace accel

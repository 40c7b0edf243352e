// DeviceMesh: the processes of a job as a grid, and the place of this one, with the names of PyTorch.
//
// An axis has a name; those of a ParallelismConfig are, outermost first, dp_replicate, dp_shard, cp, sp and tp. Processes are in
// the order of their ranks, the last axis first: neighbours in rank differ in the last axis.
//
// Axes that a question is asked of together have a name too: "dp" (dp_replicate and dp_shard), "dp_shard_cp" and "dp_cp".
//
// Threads:  a value; pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/export.h>

namespace accel {

struct ACCEL_EXPORT DeviceMesh {
  std::vector<std::string> mesh_dim_names;  // outermost first
  std::vector<int> shape;                   // processes along each of them
  std::vector<int> coordinate;              // of this process; from 0

  // Processes along an axis, or along several that have a name together. Throws kInvalidArgument with the axes that there are.
  [[nodiscard]] int size(std::string_view mesh_dim) const;
  // Where this process is along it. Throws as size().
  [[nodiscard]] int get_local_rank(std::string_view mesh_dim) const;
  // Of all axes: as many processes as the job has.
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] int ndim() const noexcept { return static_cast<int>(mesh_dim_names.size()); }

  friend bool operator==(const DeviceMesh&, const DeviceMesh&) = default;
};

// Which part of the data a process reads: part `index` of `count`.
struct DataShare {
  int index = 0;
  int count = 1;

  friend bool operator==(const DataShare&, const DataShare&) = default;
};

// Data is divided along dp_replicate and dp_shard alone. Processes that differ in other axes compute parts of the same model on the
// same batches: they have the same share.
[[nodiscard]] ACCEL_EXPORT DataShare data_share(const DeviceMesh& mesh) noexcept;

}  // namespace accel

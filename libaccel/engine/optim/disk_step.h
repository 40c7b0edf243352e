// DiskStep: the step of an optimizer whose states lie on a disk, bucket by bucket.
//
//   disk      | read 3 | write 1 |      A thread reads the states of the next buckets, another one writes those that are done.
//   optimizer      | step 2 |           In between the optimizer's groups have the parameters of one bucket alone.
//
// A bucket is small parameters together, or a part of a large one. To the optimizer a part is a parameter; so what it computes
// must depend on each element alone, or parameters stay whole. Between steps optimizer.state() shows the states as always, as
// tensors on the mapping of the file, so that saves need not know. Loads ask it for places, and what they have put into memory all
// the same moves to the file with the next step. A parameter may lie in a file too (on disk itself, or a master of mixed precision), and
// its gradient: they come and go with the states.
//
// Threads:  the thread that trains; two threads during a step.
// Cost:     memory for `num_buffers` buckets; reads and writes all states once a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/optim/speculative_step.h"
#include "libaccel/engine/optim/state_file.h"
#include "libaccel/engine/optim/state_places.h"
#include "libaccel/tensors/disk_buffers.h"

namespace torch::optim {
class Optimizer;
}

namespace accel {

struct OptimizerTraits;

// What a bucket has in a file, and whether the step writes to it.
struct BucketRange {
  StateRange bytes;
  StateRange::Access access;
};

class DiskStep final : public StatePlaces {
 public:
  // Whether a tensor of the optimizer's groups is padded (fused_step.h).
  using IsPadded = std::function<bool(const at::Tensor& parameter)>;
  // Steps the parameters that are in the optimizer's groups.
  using Step = std::function<void(const IsPadded& is_padded)>;

  // Throws kUnsupported, naming the type, for an optimizer whose states cannot be taken apart: of a class of the user's own, with
  // a step for all parameters at once, with a count for each group (schedule-free), without any state (Lomo). kFileIo for a folder
  // in which no file can be made.
  DiskStep(torch::optim::Optimizer& optimizer,
           std::filesystem::path folder,
           DiskBuffers buffers = {},
           checkpoint::FileSystem& file_system = checkpoint::real_file_system());

  // What `step` does with all parameters at once, to the bit. After each bucket come its parts, while they are in memory. Throws
  // kDiskFull before anything is stepped; kFileIo in the middle.
  using WasStepped =
      std::function<void(const at::Tensor& parameter, std::int64_t begin, std::int64_t numel)>;
  void step(const Step& step, const IsPadded& is_padded, const WasStepped& was_stepped = {});

  void make(std::span<const StateField> wanted) override;
  [[nodiscard]] at::Tensor place_of(const StateField& wanted) const override;

  // Lets parameters be stepped in the backward; gradients are to be told to the result. step() takes over what is right of it.
  SpeculativeStep& step_in_backward();
  // nullptr: without step_in_backward().
  [[nodiscard]] SpeculativeStep* speculation() const noexcept { return speculation_.get(); }

  [[nodiscard]] const StateFile& file() const noexcept { return file_; }
  // Of the last step.
  [[nodiscard]] std::size_t num_buckets() const noexcept { return num_buckets_; }

 private:
  struct Slice;
  class Groups;
  using Bucket = std::vector<Slice>;

  // Of what the next step will make.
  void make_places();
  // Moves what is in memory into the file.
  void take_in();
  [[nodiscard]] std::vector<Bucket> buckets() const;
  [[nodiscard]] static std::size_t disk_bytes_of_element(const at::Tensor& parameter);
  [[nodiscard]] std::vector<Slice> slices_of(std::size_t group, const at::Tensor& parameter) const;
  [[nodiscard]] std::vector<BucketRange> ranges_of(const Bucket& bucket) const;
  void show(Slice& slice, Groups& groups);
  void keep(const Slice& slice);

  torch::optim::Optimizer& optimizer_;
  const OptimizerTraits& traits_;
  DiskBuffers buffers_;
  StateFile file_;
  StatesByParameter kept_;
  std::size_t num_buckets_ = 0;
  std::unique_ptr<SpeculativeStep> speculation_;
};

}  // namespace accel

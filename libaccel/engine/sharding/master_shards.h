// MasterShards: this rank's shards of the parameters in full precision, while the module has them in fewer bits.
//
// Steps are too small for bf16: a weight of 1 does not change by 0.001. So the optimizer works on masters, which are
// divided as the units are; the module's parameters are roundings of them, written by their owners after each step.
//
//   rounded   the module's parameters are in their home, in fewer bits      withdraw()
//   exposed   some of them are whole tensors of the masters                 expose()
//
// Threads:  the thread that trains; every rank makes the same calls.
// Cost:     a shard of each unit, in memory or in a file (engine/optim/state_file.h); while exposed those units whole that are. An exposure inside another one, and one that is
//           asked for: a message of 8 bytes a unit, and the units that some rank lacks.
// Errors    throws what ProcessGroup throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "libaccel/engine/gradients/model_sync.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel::sharding {

class MasterShards {
 public:
  // units: with the dtypes of the masters. folder: of the file that they lie in; empty: they are in memory, on the device. Throws
  // kFileIo, kDiskFull.
  MasterShards(std::vector<Unit> units,
               std::shared_ptr<ProcessGroup> group,
               c10::Device device,
               const std::filesystem::path& folder = {});
  // The home's own shards: nothing is rounded, and what they have the home has.
  MasterShards(std::vector<Unit> units,
               std::shared_ptr<ProcessGroup> group,
               const ParameterHome& home);

  // [shard_numel] of this rank, to be written to.
  [[nodiscard]] const at::Tensor& shard(std::size_t unit) const { return shards_.at(unit); }
  // Rounds a parameter that is not divided; its values of now come back with expose().
  void round_whole(at::Tensor parameter, at::ScalarType dtype);
  // Rounds a buffer. Forwards change it in `dtype`; while exposed it has its own dtype, so that checkpoints have.
  void round_buffer(at::Tensor buffer, at::ScalarType dtype);

  // Whether they lie in a file. Then steps round their parameters, with write_part(), while these are in memory.
  [[nodiscard]] bool are_on_disk() const noexcept { return are_on_disk_; }
  [[nodiscard]] bool are_the_homes() const noexcept { return are_the_homes_; }

  // Rounds this rank's shards into its part of the home.
  void write_to(const ParameterHome& home, std::span<const std::size_t> units) const;
  // The same of elements of its shard of a unit, from `begin` on.
  void write_part(const ParameterHome& home,
                  std::size_t unit,
                  std::int64_t begin,
                  std::int64_t numel) const;
  // Takes what a program has written to this rank's part of the home. An element that is what its master is rounded to leaves
  // that as it is.
  void take_written(const ParameterHome& home, std::span<const std::size_t> units);

  // The values of a parameter or buffer that was rounded, as checkpoints have them; undefined for others.
  [[nodiscard]] at::Tensor full_values_of(const at::Tensor& tensor) const;

  // Lets parameters be the masters of all ranks, for checkpoints; the others stay rounded. parameters: in the order that was
  // planned for. Ranks that pass kAll and kNone may meet, those that pass kUndivided or kAsked only others that do the same.
  // Inside another exposure any may meet: what some rank lacks is gathered, and stays exposed until the outer one is
  // withdrawn. asked: for kAsked; may differ between ranks. Those that are not among `parameters` are passed over.
  void expose(std::vector<NamedParameter>& parameters,
              FullParameters which,
              std::span<const at::Tensor> asked = {});
  // Takes this rank's shards of those exposed parameters that were written to, on all ranks the same. A loader may write to
  // the pieces instead.
  void take_exposed(const std::vector<NamedParameter>& parameters);
  // Lets the parameters be what they were. Does nothing when they are.
  void withdraw(std::vector<NamedParameter>& parameters);

 private:
  // [world_size * shard_numel] of a unit, from all ranks.
  [[nodiscard]] at::Tensor gathered(std::size_t unit) const;
  [[nodiscard]] bool is_exposed(std::size_t unit) const {
    return num_exposures_ > 0 && exposed_[unit].defined();
  }
  // By unit: whether this rank is to have it whole.
  [[nodiscard]] std::vector<bool> wanted_units(const std::vector<NamedParameter>& parameters,
                                               FullParameters which,
                                               std::span<const at::Tensor> asked) const;
  // The same on all ranks. Where one may want what others do not know of they agree on it.
  [[nodiscard]] std::vector<std::size_t> units_to_gather(const std::vector<bool>& wanted,
                                                         FullParameters which) const;
  void expose_undivided();

  struct Whole {
    at::Tensor parameter;
    at::Tensor full;  // of a buffer only while exposed
    at::Tensor rounded;
  };
  struct Buffer {
    Whole whole;
    at::ScalarType dtype;
  };

  std::vector<Unit> units_;
  std::shared_ptr<ProcessGroup> group_;
  c10::Device device_;
  bool are_on_disk_ = false;
  bool are_the_homes_ = false;
  std::vector<at::Tensor> shards_;  // by unit
  std::vector<Whole> wholes_;       // parameters that are not divided
  std::vector<Buffer> buffers_;
  bool shows_undivided_ = false;        // wholes_ and buffers_ are exposed
  std::vector<at::Tensor> exposed_;     // by unit, while exposed; undefined: it is not
  std::vector<at::Tensor> rounded_;     // by parameter, of exposed units
  int num_exposures_ = 0;               // a save may run inside another one's hooks
  std::vector<std::int64_t> versions_;  // by parameter of exposed units, when they were exposed
};

}  // namespace accel::sharding

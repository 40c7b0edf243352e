// SaveOnDisk: keeps activations on a disk between forward and backward.
//
//   accel::SaveOnDisk disk({.folder = "/nvme"});
//   for (const auto& batch : loader) {
//     torch::Tensor loss;
//     {
//       const auto scope = disk.scope();
//       loss = loss_of(model(batch.data), batch.target);
//     }
//     accelerator.backward(loss);
//   }
//
// It is torch.autograd.graph.save_on_cpu() with a disk instead of host memory. Tensors that operators save for the backward inside the
// scope go to a file without a name. They are written while the forward continues, and leave memory when nothing else uses them. They
// are read ahead during the backward, the last tensor first. The bits are the same. Parameters, and tensors smaller than `min_bytes`,
// stay in memory. A tensor that several operators save, also as views, is written once.
//
// The file has room for one forward, and the next forward reuses it. It is deleted with the object and its last graph, also if the
// process dies.
//
// With parts (accel/activation_checkpoint.h) inside the scope only their inputs go to the disk. Units of `activation_checkpointing`
// keep their inputs in memory.
//
// As usual the backward throws if a saved tensor was changed in place. If memory is changed without autograd (data()), the backward
// reads the old or the new values.
//
// Threads:  one scope at a time on a thread; an object serves one thread. A separate thread reads and writes.
// Cost:     disk space for the saved tensors; one pass over them on the object's thread. If the disk is slower than the forward or the
//           backward, operators wait. A retained graph keeps in memory what its first backward has read.
// Source:   save_on_cpu of torch/autograd/graph.py of PyTorch 2.11; tests/unit/libaccel/placement/save_on_disk_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <accel/export.h>

namespace accel {
namespace placement {
class DiskStore;
}

struct SaveOnDiskOptions {
  // The folder of the file. It must exist, and be on a disk: a folder in memory (tmpfs) saves nothing.
  std::filesystem::path folder;
  // Tensors whose memory has fewer bytes stay in memory.
  std::int64_t min_bytes = std::int64_t{64} << 10;
  // Half for tensors on their way to the disk, half for those read ahead.
  std::int64_t max_bytes_in_memory = std::int64_t{256} << 20;
};

class ACCEL_EXPORT SaveOnDisk {
 public:
  // During its lifetime saved tensors of its thread go to the disk.
  class ACCEL_EXPORT Scope {
   public:
    ~Scope();
    Scope(Scope&&) noexcept;
    Scope& operator=(Scope&&) = delete;

   private:
    friend class SaveOnDisk;
    struct Parts;
    explicit Scope(std::unique_ptr<Parts> parts);
    std::unique_ptr<Parts> parts_;
  };

  // Throws kFileIo for a folder in which no file can be made; kInvalidArgument for sizes below 1.
  explicit SaveOnDisk(const SaveOnDiskOptions& options);
  // Graphs may outlive it.
  ~SaveOnDisk();
  SaveOnDisk(const SaveOnDisk&) = delete;
  SaveOnDisk& operator=(const SaveOnDisk&) = delete;

  // Inside it, operators throw kDiskFull with the free bytes if the disk is full, and kFileIo if a write fails. Throws kUnsupported:
  // another library has replaced autograd's engine, as LibTorch's Python does.
  [[nodiscard]] Scope scope();

  // Waits until all saved tensors are on the disk. Throws kFileIo.
  void wait_until_written();

  struct Statistics {
    std::int64_t num_written = 0;  // memories of tensors, each once
    std::int64_t bytes_written = 0;
    std::int64_t num_read = 0;
    std::int64_t num_waits = 0;  // of the backward, for data that was not read yet
    std::int64_t file_bytes = 0;
  };
  [[nodiscard]] Statistics statistics() const;

 private:
  std::shared_ptr<placement::DiskStore> store_;
};

}  // namespace accel

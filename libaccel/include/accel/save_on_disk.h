// SaveOnDisk: activations lie on a disk between forward and backward.
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
// It is torch.autograd.graph.save_on_cpu() with a disk in place of host memory. What operators save for the backward within the
// scope goes to a file without a name: it is written while the forward goes on, leaves memory when nobody else holds it, and is
// read ahead while the backward computes, the last tensor first. The bits are the same. Parameters stay where they are, and so does
// what is smaller than `min_bytes`. What several operators save, or views of, is written once.
//
// The file has room for one forward and is used again by the next one. It is gone with the object and its last graph, also when the
// process dies.
//
// Parts (accel/activation_checkpoint.h) within the scope keep their inputs in it: then only these go to the disk. Units of
// `activation_checkpointing` keep theirs in memory.
//
// As without it, the backward throws when a tensor that was saved is changed in place before; memory that is changed past autograd
// (data()) has the values of before or after.
//
// Threads:  one scope at a time on a thread; an object serves one thread. A thread of its own reads and writes.
// Cost:     as much of the disk as the forward saves; a pass over what is saved, on the object's thread. When tensors come faster
//           than the disk takes them, or are needed faster than it gives them, operators wait. A graph that is retained has
//           in memory what its first backward has read.
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
  // Where the file lies; it has to be there, and on a disk: a folder in memory (tmpfs) saves nothing.
  std::filesystem::path folder;
  // Bytes of the memory that a tensor lies in; what is smaller stays there.
  std::int64_t min_bytes = std::int64_t{64} << 10;
  // On their way to the disk, and read ahead: half of it each.
  std::int64_t max_bytes_in_memory = std::int64_t{256} << 20;
};

class ACCEL_EXPORT SaveOnDisk {
 public:
  // While it lives, what its thread saves goes to the disk.
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

  // Operators within it throw kDiskFull, with the bytes that are free, when the disk has no room for what they save; kFileIo when
  // it does not take it. Throws kUnsupported: another library has replaced autograd's engine, as LibTorch's Python does.
  [[nodiscard]] Scope scope();

  // Waits until all that was saved is on the disk. Throws kFileIo.
  void wait_until_written();

  struct Statistics {
    std::int64_t num_written = 0;  // memories of tensors, each once
    std::int64_t bytes_written = 0;
    std::int64_t num_read = 0;
    std::int64_t num_waits = 0;  // of the backward, for what was not there yet
    std::int64_t file_bytes = 0;
  };
  [[nodiscard]] Statistics statistics() const;

 private:
  std::shared_ptr<placement::DiskStore> store_;
};

}  // namespace accel

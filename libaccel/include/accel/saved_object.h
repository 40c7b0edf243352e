// SavedObject: values and tensors in one file, in the format of Python's torch.save() and torch.load().
//
//   c10::impl::GenericDict vocabulary(c10::AnyType::get(), c10::AnyType::get());
//   vocabulary.insert("size", 512);
//   vocabulary.insert("embedding", embedding);
//   accelerator.save(vocabulary, "vocabulary.pt");
//   const c10::IValue read = accel::load("vocabulary.pt");
//
// Callers include <ATen/core/ivalue.h>. An object may be none, a boolean, a 64-bit integer, a float, a text, a list, a tuple, a
// dictionary with such keys, or a tensor. Other types of IValue are kUnsupported. Python reads the file with
// torch.load(weights_only=True). load() and save() have the names of accelerate.utils.
//
// Tensors that share memory also share it in the file and after a load. A load puts them into new memory on the CPU.
//
// Threads:  functions without state. Functions that write use the rank of PartialState.
// Cost:     a save reads tensors twice (a checksum) and writes them once; a load reads them once.
// Source:   torch/serialization.py, torch/_utils.py; tests/peer/accelerate_checkpoints.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <accel/export.h>
#include <accel/safetensors_file.h>
#include <accel/state_dict.h>

namespace c10 {
struct IValue;
}

namespace accel {

struct SaveObjectOptions {
  // true: the first rank of each node writes, for nodes without a shared disk; false: only rank 0.
  bool save_on_each_node = false;
  // true: writes a safetensors file; only for a dictionary from names to tensors.
  bool safe_serialization = false;
};

// Returns at once on ranks that write nothing: call wait_for_everyone() before another rank reads. An existing file stays unchanged
// until the new one is complete. Errors  kUnsupported (names the value that cannot be saved), kInvalidArgument, kDiskFull, kFileIo.
ACCEL_EXPORT void save(const c10::IValue& object,
                       const std::filesystem::path& file,
                       const SaveObjectOptions& options = {});

// The file is not executed. NumPy arrays and Python's own classes are kUnsupported, by name. Errors  kCheckpointIncomplete (the
// damage and its place), kUnsupported, kFileIo.
[[nodiscard]] ACCEL_EXPORT c10::IValue load(const std::filesystem::path& file);

// The tensors of a .safetensors file or of a file of torch.save(), by name. Errors  as load(), safetensors::load_file();
// kCheckpointMismatch: the file holds something else.
[[nodiscard]] ACCEL_EXPORT safetensors::TensorMap load_state_dict(
    const std::filesystem::path& file);

// folder/custom_checkpoint_{index}.pkl, as in checkpoints of save_state() in the format of HF Accelerate: one dictionary of the values
// and tensors of the object's state. A load skips values that a StateDict cannot hold (none, nested objects); it reads nested
// dictionaries as "outer.inner". Errors  of save(), of load(), and of the object.
ACCEL_EXPORT void save_custom_state(const Stateful& object,
                                    const std::filesystem::path& folder,
                                    std::size_t index = 0,
                                    bool save_on_each_node = false);
ACCEL_EXPORT void load_custom_state(Stateful& object,
                                    const std::filesystem::path& folder,
                                    std::size_t index = 0);

struct MergeWeightsOptions {
  bool safe_serialization = true;      // false: pytorch_model.bin
  bool remove_checkpoint_dir = false;  // once the result is on the disk
};

struct MergedWeights {
  std::filesystem::path file;  // empty on ranks that merge nothing
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  // Messages for the user: values that are not tensors, files that were kept. Whole sentences without a newline.
  std::vector<std::string> notices;
};

// Merges the parts of a sharded checkpoint into model.safetensors or pytorch_model.bin in `output_path`, like `accel merge-weights`.
// The parts are a folder with .metadata and .distcp files, as Python's FSDP saves it; a checkpoint of libaccel; or a folder with
// model.safetensors.index.json. Rank 0 merges; the others return at once. Errors  kUsage, kCheckpointMismatch,
// kCheckpointIncomplete, kUnsupported, kDiskFull, kFileIo; `output_path` is unchanged then.
ACCEL_EXPORT MergedWeights merge_fsdp_weights(const std::filesystem::path& checkpoint_dir,
                                              const std::filesystem::path& output_path,
                                              const MergeWeightsOptions& options = {});

}  // namespace accel

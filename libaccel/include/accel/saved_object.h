// SavedObject: values and tensors in one file, as Python's torch.save() writes and torch.load() reads it.
//
//   c10::impl::GenericDict vocabulary(c10::AnyType::get(), c10::AnyType::get());
//   vocabulary.insert("size", 512);
//   vocabulary.insert("embedding", embedding);
//   accelerator.save(vocabulary, "vocabulary.pt");
//   const c10::IValue read = accel::load("vocabulary.pt");
//
// Callers include <ATen/core/ivalue.h>. Objects are what both sides have: none, booleans, integers of 64 bits, floats, texts,
// lists, tuples, dictionaries with keys of these, and tensors; what else an IValue may hold is kUnsupported. Python reads the file
// with torch.load(weights_only=True).
// Names of load() and save() are those of accelerate.utils.
//
// Tensors of one memory share it in the file and after a load. A load gives them memory of their own on the CPU.
//
// Threads:  functions without state. Those that write ask PartialState for the rank.
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
  // The first rank of each node writes, where nodes share no disk; false: rank 0 alone.
  bool save_on_each_node = false;
  // A safetensors file: of a dictionary from names to tensors only.
  bool safe_serialization = false;
};

// Returns at once on ranks that write nothing: wait_for_everyone() before another rank reads. A file that was there stays as it
// was until the new one is whole. Errors  kUnsupported (names what cannot be saved), kInvalidArgument, kDiskFull, kFileIo.
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

// folder/custom_checkpoint_{index}.pkl, as save_state() writes it in the format of HF Accelerate: one dictionary of the values and
// tensors of the object's state. A load leaves out what a StateDict cannot hold (none, nested objects); dictionaries within are
// read as "outer.inner". Errors  as save(), load(), and what the object throws.
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
  // What the user should know: values that are no tensors, files that were kept. Whole sentences without a newline.
  std::vector<std::string> notices;
};

// Merges the parts of a sharded checkpoint into model.safetensors or pytorch_model.bin in `output_path`, as `accel merge-weights`
// does: a folder with .metadata and .distcp files, as FSDP saves it in Python; a checkpoint of libaccel; or a folder with
// model.safetensors.index.json. Rank 0 merges; the others return at once. Errors  kUsage, kCheckpointMismatch,
// kCheckpointIncomplete, kUnsupported, kDiskFull, kFileIo; then `output_path` is as it was.
ACCEL_EXPORT MergedWeights merge_fsdp_weights(const std::filesystem::path& checkpoint_dir,
                                              const std::filesystem::path& output_path,
                                              const MergeWeightsOptions& options = {});

}  // namespace accel

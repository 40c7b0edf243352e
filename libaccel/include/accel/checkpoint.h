// Checkpoint: the whole state of a training run in one folder, which is complete or absent.
//
//   model.safetensors, model_1.safetensors, ...            parameters and buffers of each model
//   optimizer.safetensors + optimizer.json, optimizer_1..  state by parameter name; scalars and groups
//   scheduler.json, scheduler_1.json, ...                  and so scaler.json, loader.json, loader_1.json
//   random_states_{rank}.json                              one per rank
//   custom_checkpoint_{i}.json [+ .safetensors]            registered objects
//   accel_checkpoint.json                                  the manifest, written last
//
// With CheckpointFormat::kAccelerate the files have the format of HF Accelerate, except the manifest and the positions of loaders:
//
//   model.safetensors, or pytorch_model.bin with safe_serialization = false; pytorch_model_fsdp.bin under FSDP
//   optimizer.bin, scheduler.bin, scaler.pt, random_states_{rank}.pkl, custom_checkpoint_{i}.pkl
//
// A load reads both formats, and folders that HF Accelerate itself saved, also with FSDP's FULL_STATE_DICT or SHARDED_STATE_DICT.
//
// A save writes into a hidden folder next to the final one. All ranks write and sync, then rank 0
// writes the manifest and renames. If the job is killed at any time, the folder with the final name is a complete checkpoint or absent.
// A failure on one rank fails the save on all ranks, and the error names that rank.
//
// Threads:  the thread that trains; every rank calls the same functions in the same order.
// Cost:     a save writes the state once, from rank 0 (replicated objects are equal on all ranks),
//           and syncs it; each rank writes its own parts of sharded state. A load reads every file
//           once on every rank, and of sharded state the rank's own parts. It needs the same memory
//           again, because it changes nothing before everything is verified.
// Source:   docs/reference/checkpoint_format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accel/export.h>
#include <accel/state_dict.h>
#include <accel/state_hooks.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}
namespace accel::checkpoint {
class DividedTensors;
class FileSystem;
class RankExchange;
}  // namespace accel::checkpoint

namespace accel {

class AsyncSave;
class StatePlaces;

using CheckpointHook = std::function<void(const std::filesystem::path& folder)>;
// Removes weights that the save should not write; the same on every rank.
using SaveWeightsHook =
    std::function<void(std::vector<ModelWeights>& weights, const std::filesystem::path& folder)>;
// Removes models that the load should not change; the same on every rank.
using LoadModelsHook = std::function<void(std::vector<torch::nn::Module*>& models,
                                          const std::filesystem::path& folder)>;

// The objects of a checkpoint. Borrowed. Their order gives the numbers in the file names, so a load
// needs the same objects in the same order.
struct CheckpointObjects {
  std::vector<torch::nn::Module*> models;
  // SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS of LibTorch, those of libaccel, or any that also derives
  // from Stateful.
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<Stateful*> schedulers;
  std::vector<Stateful*> loaders;
  Stateful* scaler = nullptr;  // none: no scaler.json
  Stateful* random = nullptr;  // this rank's generators; the only part that differs between ranks
  std::vector<Stateful*> custom;
  // Called on every rank before a save writes anything, with the folder under construction. Files
  // (not folders) that a hook writes there become part of the checkpoint. Its exceptions fail the
  // save.
  std::vector<CheckpointHook> before_save;
  // Like before_save, and called after it.
  std::vector<SaveWeightsHook> choose_weights;
  // Called on every rank when a load has verified everything except the weights and changed nothing yet. Its
  // exceptions fail the load.
  std::vector<CheckpointHook> before_load;
  // Like before_load, and called after it. The remaining models get the weights of the checkpoint in order.
  std::vector<LoadModelsHook> choose_models;
  // true: weights that only one side has fail a load; false: they are ignored.
  bool strict = true;
  // Which tensors are divided over the ranks; nullptr: none, all ranks have the same. Set by
  // Accelerator::checkpoint_objects().
  checkpoint::DividedTensors* divided = nullptr;
  // For each optimizer: where loaded states go; nullptr or none: into memory. Set as above.
  std::vector<StatePlaces*> state_places;
  // CheckpointFormat::kAccelerate: writes the files of Accelerate under FSDP. Set as above.
  bool is_fsdp = false;
};

struct CheckpointInfo {
  std::filesystem::path folder;  // absolute, as it was named
  int version = 0;               // of the format
  int world_size = 0;            // ranks that saved it
  std::int64_t step = 0;
  std::int64_t generation = 0;  // grows each time a run continues in the folder after another one
  std::int64_t iteration = 0;   // the N of checkpoint_N; 0 for a folder that was named by hand
  // The supervisor's name for it, after Accelerator::save_state(); empty without a supervisor.
  std::string commit_token;
};

enum class CheckpointFormat {
  kAccel,
  kAccelerate,  // which HF Accelerate's load_state() reads
};

// When a save in the background (accel/async_save.h) copies the state.
enum class AsyncCopy {
  // Before the call returns, so it takes the time of a memory copy. Always safe.
  kAtOnce,
  // During the next forward and backward, before the next step. The call takes only some messages between the ranks. It copies at once
  // everything that a forward may change (buffers, generators, positions of loaders, registered objects), optimizers of your own classes, and
  // tensors outside ordinary CPU memory. The thread of the save copies parameters and optimizer states. Before code writes to one of
  // them, the rest is copied: steps, loads, averages, weights sent between ranks, and every operator of LibTorch. So the checkpoint has
  // the state of the call, to the bit.
  // libaccel cannot observe code that writes to a parameter by its address. If that code calls bump_version(), or resizes a storage,
  // the save fails with kInvalidArgument naming the tensor; otherwise use kAtOnce. Operators take some microseconds more until
  // everything is copied.
  kBeforeUpdate,
};

struct SaveStateOptions {
  // false: weights go into pytorch_model.bin, a pickle as torch.save() writes it, and sharded state is gathered.
  bool safe_serialization = true;
  // kAccelerate: sharded state is gathered; LBFGS, Muon, AdaLomo and optimizers of your own are kUnsupported.
  CheckpointFormat format = CheckpointFormat::kAccel;
  // Only for saves in the background; other saves copy nothing.
  AsyncCopy async_copy = AsyncCopy::kAtOnce;
};

struct SaveOptions {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::int64_t iteration = 0;
  bool save_on_each_node =
      false;  // nodes share no disk: local rank 0 of each writes all of it there
  SaveStateOptions files = {};
};

// Saves into `folder`; links are followed and stay. An older checkpoint of that name is replaced in one step and removed
// afterwards. Anything else with the name is kCheckpointExists, before anything is written. Errors  kDiskFull (device, bytes),
// kFileIo, kUnsupported (an optimizer or tensor that cannot be saved), kInvalidArgument (an empty name),
//         kPeerLost. A failed save changes no existing file.
ACCEL_EXPORT CheckpointInfo save_checkpoint(const std::filesystem::path& folder,
                                            const CheckpointObjects& objects,
                                            const SaveOptions& options = {});

struct LoadReport {
  CheckpointInfo checkpoint;
  // Notices of a load that succeeded: a checkpoint that was skipped and the reason, a rank without saved random state. Whole
  // sentences without a newline.
  std::vector<std::string> notices;
};

// Loads the checkpoint in `folder`, or a folder of HF Accelerate's save_state(), into `objects`. The latter has no manifest: neither
// hashes nor the number of loaders are compared, and loaders start from the beginning. Its pickles are read but not executed. All
// objects are changed, or none, on every rank (custom objects, schedulers and loaders are changed last, each by its own
// load_state_dict()).
// Errors  kCheckpointIncomplete (no valid manifest; a file that is missing, truncated or changed: its
//         name, the expected and the actual size or hash), kCheckpointVersion, kCheckpointMismatch
//         (number and kind of objects, parameter groups), kSafetensorsMismatch (missing, unexpected
//         and different tensors), kFileIo, kPeerLost.
ACCEL_EXPORT LoadReport load_checkpoint(const std::filesystem::path& folder,
                                        const CheckpointObjects& objects);

// Reads only the manifest. Errors  kCheckpointIncomplete, kCheckpointVersion.
ACCEL_EXPORT CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

struct CheckpointSeriesOptions {
  std::filesystem::path folder;    // <project_dir>/checkpoints
  std::optional<int> total_limit;  // checkpoints kept; at least 1
  std::int64_t iteration = 0;      // the number of the next checkpoint
  std::int64_t restart_count = 0;  // above 0: numbers continue after the existing ones
  bool save_on_each_node = false;
};

// The numbered checkpoints of one project: checkpoint_0, checkpoint_1, ... in one folder.
//
// Newest means highest (generation, step, number). Older ones are removed only after a new one is
// complete, so at least one is on disk at any time after the first save.
class ACCEL_EXPORT CheckpointSeries {
 public:
  // Errors  kInvalidArgument for a total_limit below 1.
  explicit CheckpointSeries(CheckpointSeriesOptions options);
  // For tests: another disk and other ranks, both borrowed.
  CheckpointSeries(CheckpointSeriesOptions options,
                   checkpoint::FileSystem& file_system,
                   checkpoint::RankExchange& ranks);

  // Saves as checkpoint_<iteration()> and removes old checkpoints above the limit. Errors as
  // save_checkpoint(); kCheckpointExists if the number is taken (start with load_newest(), or set
  // the iteration).
  CheckpointInfo save(const CheckpointObjects& objects,
                      std::int64_t step,
                      const SaveStateOptions& files = {});
  // Starts the same in the background, like async_save_checkpoint(). It uses up the number, even if the save fails.
  [[nodiscard]] AsyncSave begin_save(const CheckpointObjects& objects,
                                     std::int64_t step,
                                     const SaveStateOptions& files = {});

  // Loads the newest complete checkpoint. It skips incomplete and damaged checkpoints with a notice.
  // Later saves continue with the number after the highest existing one. Errors
  // kCheckpointIncomplete if there is none; otherwise as load_checkpoint(): a checkpoint of other
  // objects or of a newer format is an error and not skipped.
  LoadReport load_newest(const CheckpointObjects& objects);
  // The same, but returns std::nullopt if there is no checkpoint at all. If all existing ones are invalid, it throws
  // kCheckpointIncomplete with the fault of each, so damage never restarts a run from scratch. Numbers continue after the existing ones.
  std::optional<LoadReport> load_newest_if_any(const CheckpointObjects& objects);

  // Removes all numbered checkpoints, complete or not. Other files in the folder stay. Errors kFileIo, kPeerLost.
  void remove_all();
  // Throws kInvalidArgument, on all ranks, if there is a numbered folder, complete or not, and names it. Every rank calls it.
  void refuse_present();

  // Loads from a folder with any name, and treats it as the origin of later saves.
  LoadReport load(const std::filesystem::path& folder, const CheckpointObjects& objects);

  // Complete checkpoints, newest first; notices name the skipped ones. Checks manifests and file
  // sizes, not contents. It is this process's view and needs no other rank.
  [[nodiscard]] std::vector<CheckpointInfo> complete(
      std::vector<std::string>* notices = nullptr) const;

  // The number of the next checkpoint.
  [[nodiscard]] std::int64_t iteration() const noexcept { return options_.iteration; }
  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return options_.folder; }

 private:
  // Calls use(ranks) with the ranks of the process group, or those given to the constructor.
  template <typename Use>
  auto with_ranks(Use use);
  // Tries the complete checkpoints, newest first; adds a notice for each skipped one.
  std::optional<LoadReport> load_first_good(checkpoint::RankExchange& ranks,
                                            const CheckpointObjects& objects,
                                            std::vector<std::string>& notices);
  LoadReport load_on(checkpoint::RankExchange& ranks,
                     const std::filesystem::path& folder,
                     const CheckpointObjects& objects);
  void start_run();
  // Ends the earlier save, and agrees on the name of the next one.
  SaveOptions next_save(checkpoint::RankExchange& ranks,
                        std::int64_t step,
                        const SaveStateOptions& files);
  [[nodiscard]] std::filesystem::path next_folder() const;
  void remove(const std::filesystem::path& checkpoint) const;
  void prune() const;

  CheckpointSeriesOptions options_;
  checkpoint::FileSystem* file_system_;
  checkpoint::RankExchange* ranks_ = nullptr;  // nullptr: the ranks of the process group
  std::optional<std::int64_t> generation_;     // of this run; known from its first load or save on
};

struct SaveModelOptions {
  // "10GB", "500MB" (decimal), "1.5GiB" (binary), or a number of bytes: "100".
  std::string max_shard_size = "10GB";
  // false: pytorch_model.bin and its shards, pickles as torch.save() writes them, in place of safetensors.
  bool safe_serialization = true;
};

// Writes the weights for others to use: model.safetensors, or model-00001-of-0000K.safetensors with
// model.safetensors.index.json when they exceed max_shard_size; pytorch_model.bin, pytorch_model-00001-of-0000K.bin and
// pytorch_model.bin.index.json without safe_serialization. Tied weights are written once.
// Files of an earlier save of that kind are removed. Writes from this process: call it on one rank. Errors
// kInvalidArgument for the size, kUnsupported for parameters on the meta device, kDiskFull,
//         kFileIo.
ACCEL_EXPORT void save_model(const torch::nn::Module& model,
                             const std::filesystem::path& folder,
                             const SaveModelOptions& options = {});

// Names and defaults are the same as in HF Accelerate.
struct LoadModelOptions {
  // The places of submodules, and the folder for "disk". kUnsupported unless both are empty.
  std::map<std::string, std::string> device_map;
  std::filesystem::path offload_folder;
  // Changes the model's floating-point tensors to this dtype: "float16", "bfloat16", "float32", "float64", with or without "torch.".
  // Empty: they keep their dtype, and the file's values are converted.
  std::string dtype;
  // Options of offload. kUnsupported unless false.
  bool offload_state_dict = false;
  bool offload_buffers = false;
  // Modules by a part of their names: they become float32 if dtype is "float16".
  std::vector<std::string> keep_in_fp32_modules;
  // true: names that only one side has are an error; false: they are reported.
  bool strict = false;
  // The files contain whole tensors: kUnsupported unless true. For parts use load_state().
  bool full_state_dict = true;
  // Only rank 0 reads the files and sends the values. Requires: every rank calls it.
  bool broadcast_from_rank0 = false;
};

// Names that only one side has, sorted. Of tied weights one name is enough.
struct LoadModelReport {
  std::vector<std::string> missing_keys;     // of the model
  std::vector<std::string> unexpected_keys;  // of the files
};

// Fills `model` from files of libaccel or Python: a .safetensors file, a file of torch.save() (.bin, .pt, .pth), an index (.json; also
// one that maps names to files without a weight_map), or a folder with pytorch_model.bin, model.safetensors or exactly one .index.json,
// in this order. dtypes are converted, shapes must agree. Pickles are read and never executed. Nothing is changed if it throws.
// Errors  kSafetensorsMismatch (lists names), kSafetensorsHeader, kCheckpointIncomplete (a damaged pickle), kUnsupported (an option, or
// a name in a pickle), kInvalidArgument, kConfigInvalidValue (an index), kFileIo.
ACCEL_EXPORT LoadModelReport load_checkpoint_in_model(torch::nn::Module& model,
                                                      const std::filesystem::path& path,
                                                      const LoadModelOptions& options = {});

}  // namespace accel

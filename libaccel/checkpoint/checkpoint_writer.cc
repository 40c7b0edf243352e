// Writing a checkpoint.
//
// The promise: whatever stops a save (a signal, a power cut, a full disk, a rank that fails), the
// folder with the final name is a complete checkpoint or is not there, and no older checkpoint is
// touched. Three phases, each of which fails on all ranks when it fails on one (rank_exchange.h):
//
//   prepare   leader    the target may be written; an empty .tmp-<name> beside it
//   write     leader    replicated state: models, optimizers, schedulers, loaders, scaler, custom
//   objects
//             all       random_states_{rank}; every file is synced before its rank reports it
//   commit    leader    sync the folder: the names are durable
//                       write and sync the manifest, sync the folder again
//                       rename to the final name: the checkpoint exists
//                       sync the parent: it still exists after a power cut
//
// What relies on what: the manifest lists sizes and hashes of files that are on the device before
// it is; the rename comes after the manifest is. So a folder with the final name always has a
// manifest that is true. The same holds when the file system reorders what was not synced, which is
// why the folder is synced twice.
//
// An existing checkpoint of the same name is exchanged for the new one in one step (renameat2),
// then removed under the temporary name. Where the file system cannot exchange, three renames leave
// a moment without that name; the data is complete beside it.
//
// The leader is rank 0, or the first rank of each node when nodes have disks of their own; then
// each node gets a complete folder with the random states of its own ranks.

#include "libaccel/checkpoint/checkpoint_writer.h"

#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "libaccel/checkpoint/layout.h"
#include "libaccel/checkpoint/manifest.h"
#include "libaccel/checkpoint/module_state.h"
#include "libaccel/checkpoint/optimizer_state.h"
#include "libaccel/checkpoint/state_files.h"
#include "libaccel/checkpoint/tensor_file.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Writes the files of one rank and remembers what it wrote.
class FileSet {
 public:
  FileSet(FileSystem& file_system, fs::path folder)
      : file_system_(file_system), folder_(std::move(folder)) {}

  void add_text(const std::string& name, std::string_view text) {
    files_[name] = write_text_file(file_system_, folder_ / name, text);
  }
  void add_tensors(const std::string& name,
                   const safetensors::TensorMap& tensors,
                   const safetensors::Metadata& metadata = {}) {
    files_[name] = write_tensor_file(file_system_, folder_ / name, tensors, metadata);
  }
  void add_state(const std::string& stem, const Stateful& object) {
    const StateDict state = object.state_dict();
    add_text(stem + std::string(kValueSuffix), encode_state(state));
    if (!state.tensors.empty()) add_tensors(stem + std::string(kTensorSuffix), state.tensors);
  }

  // For the leader: {name: [bytes, hash]}.
  [[nodiscard]] std::string report(int leader) const {
    json files = json::object();
    for (const auto& [name, digest] : files_) files[name] = {digest.bytes, digest.xxh3};
    return json{{"leader", leader}, {"files", std::move(files)}}.dump();
  }

 private:
  FileSystem& file_system_;
  fs::path folder_;
  std::map<std::string, FileDigest> files_;
};

class Save {
 public:
  Save(FileSystem& file_system,
       RankExchange& ranks,
       const fs::path& folder,
       const CheckpointObjects& objects,
       const SaveOptions& options)
      : file_system_(file_system),
        ranks_(ranks),
        folder_(folder),
        temporary_(temporary_folder(folder)),
        objects_(objects),
        options_(options),
        leader_(leader_of(ranks, options.save_on_each_node)) {}

  void run(Existing existing) {
    try {
      in_phase([&] { prepare(existing); });
      std::vector<std::string> reports = agree(ranks_, [&] { return write(); }).payloads_or_throw();
      in_phase([&] { commit(reports); });
    } catch (const Error&) {
      if (is_leader()) clean_up();
      throw;
    }
  }

 private:
  [[nodiscard]] bool is_leader() const { return ranks_.rank() == leader_; }

  // A phase in which only leaders work.
  template <typename Work>
  void in_phase(Work work) {
    std::ignore = agree(ranks_, [&]() -> std::string {
                    if (is_leader()) work();
                    return {};
                  }).payloads_or_throw();
  }

  void prepare(Existing existing) {
    std::error_code error;
    if (fs::exists(folder_, error) && !fs::is_empty(folder_, error)) {
      const bool is_checkpoint = fs::exists(folder_ / kManifestName, error);
      if (existing == Existing::kRefuse || !is_checkpoint) {
        throw Error(
            ErrorCode::kCheckpointExists,
            folder_.string() + " exists" + (is_checkpoint ? "" : " and is not a checkpoint"));
      }
    }
    file_system_.remove(temporary_);  // left by a save that was killed
    std::vector<fs::path> made;       // parents that are new, and so need to be durable too
    for (fs::path p = parent(); p.has_relative_path() && !fs::exists(p, error);
         p = p.parent_path()) {
      made.push_back(p);
    }
    file_system_.make_folder(temporary_);
    for (const fs::path& folder : made) file_system_.sync_folder(parent_of(folder));
  }

  std::string write() {
    FileSet files(file_system_, temporary_);
    for (const CheckpointHook& hook : objects_.before_save) hook(temporary_);
    if (is_leader()) write_replicated(files);
    if (objects_.random != nullptr) files.add_state(random_stem(ranks_.rank()), *objects_.random);
    return files.report(leader_);
  }

  void write_replicated(FileSet& files) {
    for (size_t i = 0; i < objects_.models.size(); ++i) {
      UniqueState state = unique_state(state_of(*objects_.models[i]));
      safetensors::TensorMap tensors;
      for (NamedTensor& item : state.tensors)
        tensors.emplace(std::move(item.name), std::move(item.tensor));
      state.aliases["format"] = "pt";
      files.add_tensors(numbered("model", i) + std::string(kTensorSuffix), tensors, state.aliases);
    }
    const ParameterNames names(objects_.models);
    for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
      const SavedOptimizer saved = save_optimizer(*objects_.optimizers[i], names);
      files.add_text(numbered("optimizer", i) + std::string(kValueSuffix), saved.json);
      files.add_tensors(numbered("optimizer", i) + std::string(kTensorSuffix), saved.tensors);
    }
    for (size_t i = 0; i < objects_.schedulers.size(); ++i) {
      files.add_state(numbered("scheduler", i), *objects_.schedulers[i]);
    }
    for (size_t i = 0; i < objects_.loaders.size(); ++i) {
      files.add_state(numbered("loader", i), *objects_.loaders[i]);
    }
    if (objects_.scaler != nullptr) files.add_state("scaler", *objects_.scaler);
    for (size_t i = 0; i < objects_.custom.size(); ++i) {
      files.add_state(custom_stem(i), *objects_.custom[i]);
    }
  }

  [[nodiscard]] Manifest manifest_of(const std::vector<std::string>& reports) const {
    Manifest manifest{.world_size = ranks_.size(),
                      .step = options_.step,
                      .generation = options_.generation,
                      .iteration = options_.iteration};
    manifest.objects = {.models = std::ssize(objects_.models),
                        .optimizers = std::ssize(objects_.optimizers),
                        .schedulers = std::ssize(objects_.schedulers),
                        .loaders = std::ssize(objects_.loaders),
                        .custom = std::ssize(objects_.custom),
                        .has_scaler = objects_.scaler != nullptr};
    for (const std::string& text : reports) {
      const json report = json::parse(text);
      if (report.at("leader").get<int>() != leader_) continue;  // on another node's disk
      for (const auto& [name, digest] : report.at("files").items()) {
        manifest.files[name] = {digest.at(0).get<std::uint64_t>(),
                                digest.at(1).get<std::uint64_t>()};
      }
    }
    return manifest;
  }

  // What is in the folder although no rank reported it.
  void add_files_of_hooks(Manifest& manifest) const {
    for (const fs::directory_entry& entry : fs::directory_iterator(temporary_)) {
      const std::string name = entry.path().filename().string();
      if (manifest.files.contains(name)) continue;
      if (!entry.is_regular_file()) {
        throw Error(ErrorCode::kUnsupported,
                    "a hook left " + name + " in the checkpoint, which is not a plain file",
                    "let the hook write files only");
      }
      InputFile file(entry.path());
      file_system_.sync_file(file.fd(), entry.path());
      manifest.files[name] = file.digest_of_rest();
    }
  }

  void commit(const std::vector<std::string>& reports) {
    Manifest manifest = manifest_of(reports);
    if (!objects_.before_save.empty()) add_files_of_hooks(manifest);
    file_system_.sync_folder(temporary_);
    write_text_file(file_system_, temporary_ / kManifestName, encode_manifest(manifest));
    file_system_.sync_folder(temporary_);
    std::error_code error;
    const bool replaces = fs::exists(folder_ / kManifestName, error);
    if (replaces) {
      file_system_.exchange(temporary_, folder_);
    } else {
      file_system_.rename(temporary_, folder_);
    }
    file_system_.sync_folder(parent());
    if (replaces) file_system_.remove(temporary_);
  }

  // The disk may be why the save failed, so that removing may fail too; the first error is the one
  // to report, and the next save removes what is left.
  void clean_up() const {
    try {
      file_system_.remove(temporary_);
    } catch (const Error&) {
    }
  }

  static fs::path parent_of(const fs::path& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
  }
  [[nodiscard]] fs::path parent() const { return parent_of(folder_); }

  FileSystem& file_system_;
  RankExchange& ranks_;
  fs::path folder_;
  fs::path temporary_;
  const CheckpointObjects& objects_;
  const SaveOptions& options_;
  int leader_;
};

// "runs/last/" names the folder "last".
fs::path without_trailing_slash(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

}  // namespace

int leader_of(const RankExchange& ranks, bool save_on_each_node) {
  return save_on_each_node ? ranks.rank() - ranks.local_rank() : 0;
}

CheckpointInfo write_checkpoint(FileSystem& file_system,
                                RankExchange& ranks,
                                const fs::path& folder,
                                const CheckpointObjects& objects,
                                const SaveOptions& options,
                                Existing existing) {
  const fs::path target = without_trailing_slash(folder);
  try {
    Save(file_system, ranks, target, objects, options).run(existing);
  } catch (Error& error) {
    error.while_doing("saving the checkpoint " + target.string());
    throw;
  }
  return {.folder = target,
          .version = kFormatVersion,
          .world_size = ranks.size(),
          .step = options.step,
          .generation = options.generation,
          .iteration = options.iteration};
}

}  // namespace accel::checkpoint

namespace accel {

CheckpointInfo save_checkpoint(const std::filesystem::path& folder,
                               const CheckpointObjects& objects,
                               const SaveOptions& options) {
  return checkpoint::write_checkpoint(checkpoint::real_file_system(),
                                      *checkpoint::current_ranks(),
                                      folder,
                                      objects,
                                      options,
                                      checkpoint::Existing::kReplace);
}

}  // namespace accel

// Writing a checkpoint.
//
// The promise: whatever stops a save (a signal, a power cut, a full disk, a rank that fails), the
// folder with the final name is a complete checkpoint or is not there, and no older checkpoint is
// touched. Phases, each of which fails on all ranks when it fails on one (rank_exchange.h):
//
//   prepare   leader    the target may be written; an empty .tmp-<name> beside it
//   collect   all       hooks; what this rank is to write (save_content.h); shared files are the same
//   create    leader    shared files at their final size, with their headers
//   write     leader    replicated state: models, optimizers, schedulers, loaders, scaler, custom
//   objects
//             all       random_states_{rank}, and this rank's ranges of shared files; every file is
//                       synced by every rank that wrote to it, before that rank reports it
//   commit    leader    every byte of shared files has been written by somebody
//                       sync the folder: the names are durable
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
// a moment without that name; the next save or load gives it back (folder_exchange.h).
//
// The leader is rank 0, or the first rank of each node when nodes have disks of their own; then
// each node gets a complete folder with the random states of its own ranks.

#include "libaccel/engine/checkpoint/series/checkpoint_writer.h"

#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/version.h>

#include "libaccel/engine/checkpoint/files/folder_lock.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/states/save_content.h"
#include "libaccel/interception/state_staging.h"
#include "runtime/checkpoint/folder_exchange.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Writes the files of one rank and remembers what it wrote.
class FileSet {
 public:
  FileSet(FileSystem& file_system, fs::path folder)
      : file_system_(file_system), folder_(std::move(folder)) {}

  void write(const SaveContent& content, int rank) {
    UnsyncedFiles unsynced;
    for (const auto& [name, text] : content.texts)
      files_[name] = write_text_file(file_system_, folder_ / name, text, unsynced);
    for (const auto& [name, tensors, metadata] : content.files)
      files_[name] = write_tensor_file(file_system_, folder_ / name, tensors, metadata, unsynced);
    for (const auto& [name, object] : content.objects)
      files_[name] = write_object_file(file_system_, folder_ / name, object, unsynced);
    for (const SharedFile& file : content.shared)
      add_ranges(file, file.write(file_system_, folder_, rank, unsynced));
    unsynced.sync(file_system_);
  }

  void create(const SaveContent& content, int rank) {
    for (const SharedFile& file : content.shared)
      add_ranges(file, file.create(file_system_, folder_, rank));
  }

  // For the leader: {name: [bytes, hash]}, and of shared files {name: [[begin, bytes, hash], ...]}.
  [[nodiscard]] std::string report(int leader) const {
    json files = json::object();
    for (const auto& [name, digest] : files_) files[name] = {digest.bytes, digest.xxh3};
    return json{{"leader", leader}, {"files", std::move(files)}, {"ranges", ranges_}}.dump();
  }

 private:
  void add_ranges(const SharedFile& file, const std::vector<FileRange>& ranges) {
    json& list = ranges_[file.name()];
    for (const FileRange& range : ranges) list.push_back({range.begin, range.bytes, range.xxh3});
  }

  FileSystem& file_system_;
  fs::path folder_;
  std::map<std::string, FileDigest> files_;
  json ranges_ = json::object();
};

}  // namespace

class PreparedSave::Impl {
 public:
  Impl(FileSystem& file_system,
       const RankExchange& ranks,
       const fs::path& folder,
       const CheckpointObjects& objects,
       const SaveOptions& options)
      : file_system_(file_system),
        name_(absolute_name(folder)),
        folder_(place_of(folder)),
        temporary_(temporary_folder(folder_)),
        options_(options),
        counts_{.models = std::ssize(objects.models),
                .optimizers = std::ssize(objects.optimizers),
                .schedulers = std::ssize(objects.schedulers),
                .loaders = std::ssize(objects.loaders),
                .custom = std::ssize(objects.custom),
                .has_scaler = objects.scaler != nullptr},
        has_hooks_(!objects.before_save.empty() || !objects.choose_weights.empty()),
        rank_(ranks.rank()),
        world_size_(ranks.size()),
        leader_(leader_of(ranks, options.save_on_each_node)) {}

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { remove_unfinished(); }

  void begin(RankExchange& ranks, const CheckpointObjects& objects, Existing existing) {
    or_clean_up([&] {
      is_unfinished_ = is_leader();
      in_phase(ranks, [&] { prepare(existing); });
      collect(ranks, objects);
    });
  }

  void copy_tensors(RankExchange& ranks, CopySpace& space) {
    or_clean_up([&] {
      agree_on(ranks, [&] {
        if (options_.files.async_copy == AsyncCopy::kAtOnce)
          content_.copy_tensors(space);
        else
          staging_ = content_.stage_tensors(space);
      });
    });
  }

  void finish(RankExchange& ranks) {
    or_clean_up([&] {
      if (staging_) staging_->copy();
      FileSet files(file_system_, temporary_);
      if (!content_.shared.empty()) in_phase(ranks, [&] { files.create(content_, rank_); });
      const auto write = [&] {
        if (staging_) staging_->check();
        files.write(content_, rank_);
        return files.report(leader_);
      };
      auto written =
          options_.save_on_each_node ? agree(ranks, write) : agree_for_rank_zero(ranks, write);
      const std::vector<std::string> reports = or_throw(std::move(written));
      in_phase(ranks, [&] { commit(reports); });
    });
  }

  [[nodiscard]] CheckpointInfo info() const {
    return {.folder = name_,
            .version = version(),
            .world_size = world_size_,
            .step = options_.step,
            .generation = options_.generation,
            .iteration = options_.iteration};
  }

 private:
  [[nodiscard]] bool is_leader() const { return rank_ == leader_; }
  // Of the format.
  [[nodiscard]] int version() const { return version_to_write(!content_.shared.empty()); }

  template <typename Work>
  void or_clean_up(Work work) {
    try {
      work();
    } catch (Error& error) {
      remove_unfinished();
      error.while_doing("saving the checkpoint " + name_.string());
      throw;
    }
  }

  // A phase in which only leaders work.
  template <typename Work>
  void in_phase(RankExchange& ranks, Work work) {
    std::ignore = or_throw(agree_for_rank_zero(ranks, [&]() -> std::string {
      if (is_leader()) work();
      return {};
    }));
  }

  void prepare(Existing existing) {
    if (folder_.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the folder of the checkpoint has an empty name",
                  "name a folder");
    }
    std::error_code error;
    // Held until what was left behind is gone: a folder that another one has made, and not locked yet, is that one's loss.
    const FolderLock left_over = lock_or_refuse(temporary_);
    const FolderLock left_aside = lock_or_refuse(aside_of(temporary_));
    // Not for numbered checkpoints: what is left of one that was to go must not come back.
    if (existing == Existing::kReplace) finish_exchange(file_system_, folder_, Unnamed::kAny);
    if (auto objection = objection_to(folder_, what_is_at(folder_), existing))
      throw *std::move(objection);
    file_system_.remove(temporary_);  // left by a save that was killed
    if (fs::exists(aside_of(temporary_), error)) file_system_.remove(aside_of(temporary_));
    std::vector<fs::path> made;  // parents that are new, and so need to be durable too
    for (fs::path p = parent(); p.has_relative_path() && !fs::exists(p, error);
         p = p.parent_path()) {
      made.push_back(p);
    }
    file_system_.make_folder(temporary_);
    lock_ = FolderLock::take(temporary_);
    if (!lock_ || !lock_->is_held()) fail_locked();
    for (const fs::path& folder : made) file_system_.sync_folder(parent_of(folder));
  }

  // Two jobs that save under one name would write into each other's files.
  FolderLock lock_or_refuse(const fs::path& folder) {
    std::optional<FolderLock> lock = FolderLock::take(folder);
    if (!lock) fail_locked();
    return *std::move(lock);
  }

  [[noreturn]] void fail_locked() {
    is_unfinished_ = false;  // the temporary folder is another one's
    throw Error(ErrorCode::kCheckpointExists,
                "another process is saving " + folder_.string() + " at this moment",
                "let every job save under a name, or in a project_dir, of its own");
  }

  // What each rank is to write. Hooks come first: they may leave files and change objects.
  void collect(RankExchange& ranks, const CheckpointObjects& objects) {
    const std::vector<std::string> plans = or_throw(agree(ranks, [&] {
      std::vector<ModelWeights> weights = weights_of(objects.models);
      for (const CheckpointHook& hook : objects.before_save) hook(temporary_);
      for (const SaveWeightsHook& hook : objects.choose_weights) hook(weights, temporary_);
      counts_.models = std::ssize(weights);
      content_ = collect_content(
          objects, weights, {.rank = rank_, .is_leader = is_leader(), .files = options_.files});
      return plan_text();
    }));
    check_plans(plans);
  }

  // What the ranks must agree on before they write to one file.
  [[nodiscard]] std::string plan_text() const {
    json headers = json::object();
    for (const SharedFile& file : content_.shared) headers[file.name()] = file.header_hash();
    return json{{"leader", leader_}, {"models", counts_.models}, {"headers", std::move(headers)}}
        .dump();
  }

  // Throws the same on all ranks.
  static void check_plans(const std::vector<std::string>& plans) {
    const json first = json::parse(plans.front());
    for (std::size_t rank = 1; rank < plans.size(); ++rank) {
      const json plan = json::parse(plans[rank]);
      if (plan.at("models") != first.at("models")) {
        throw Error(ErrorCode::kCheckpointMismatch,
                    "hooks have left the weights of " + plan.at("models").dump() +
                        " models on rank " + std::to_string(rank) + ", of " +
                        first.at("models").dump() + " on rank 0",
                    "let save hooks take off the same weights on every rank");
      }
      if (plan.at("headers") != first.at("headers")) {
        throw Error(ErrorCode::kCheckpointMismatch,
                    "rank " + std::to_string(rank) +
                        " would save other tensors than rank 0: names, shapes or types differ",
                    "prepare the same models and optimizers in the same order on every rank");
      }
      if (!plan.at("headers").empty() && plan.at("leader") != first.at("leader")) {
        throw Error(ErrorCode::kUnsupported,
                    "the parts of a sharded model cannot be saved on the disks of several nodes",
                    "save to a disk that all nodes share, or let Accelerator::save_state() save "
                    "with ProjectConfiguration.save_on_each_node");
      }
    }
  }

  [[nodiscard]] Manifest manifest_of(const std::vector<std::string>& reports) const {
    Manifest manifest{.version = version(),
                      .world_size = world_size_,
                      .step = options_.step,
                      .generation = options_.generation,
                      .iteration = options_.iteration};
    manifest.objects = counts_;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const json report = json::parse(reports[rank]);
      if (report.at("leader").get<int>() != leader_) continue;  // on another node's disk
      for (const auto& [name, digest] : report.at("files").items()) {
        manifest.files[name] = {digest.at(0).get<std::uint64_t>(),
                                digest.at(1).get<std::uint64_t>()};
      }
      for (const auto& [name, ranges] : report.at("ranges").items()) {
        for (const json& range : ranges) {
          manifest.ranges[name].push_back({.begin = range.at(0).get<std::uint64_t>(),
                                           .bytes = range.at(1).get<std::uint64_t>(),
                                           .rank = static_cast<int>(rank),
                                           .xxh3 = range.at(2).get<std::uint64_t>()});
        }
      }
    }
    for (const SharedFile& file : content_.shared) {
      manifest.files[file.name()] = {file.bytes(), 0};
      or_throw(sort_and_check(manifest.ranges[file.name()], file.bytes()));
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
    if (has_hooks_) add_files_of_hooks(manifest);
    file_system_.sync_folder(temporary_);
    write_text_file(
        file_system_,
        temporary_ / kManifestName,
        encode_manifest(manifest, {.accel = accel::version(), .torch = torch_version()}));
    file_system_.sync_folder(temporary_);
    std::error_code error;
    const bool replaces = fs::exists(folder_ / kManifestName, error);
    if (replaces) {
      file_system_.exchange(temporary_, folder_);
    } else {
      file_system_.rename(temporary_, folder_);
    }
    // From here on the temporary folder is the checkpoint before this one, or nothing. It stays when
    // this one may not outlive a power cut.
    is_unfinished_ = false;
    lock_.reset();
    file_system_.sync_folder(parent());
    if (replaces) remove_temporary();
  }

  // Does not fail. The disk may be why the save failed, so that removing may fail too, and then the
  // first error is the one to report; and a checkpoint that is complete is no less so because the
  // one before it is still there. The next save removes what is left.
  void remove_temporary() const {
    try {
      file_system_.remove(temporary_);
    } catch (const Error&) {
    }
  }

  void remove_unfinished() {
    if (std::exchange(is_unfinished_, false)) remove_temporary();
    lock_.reset();
  }

  static fs::path parent_of(const fs::path& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
  }
  [[nodiscard]] fs::path parent() const { return parent_of(folder_); }

  FileSystem& file_system_;
  fs::path name_;    // for the user
  fs::path folder_;  // which that stands for
  fs::path temporary_;
  SaveOptions options_;
  ObjectCounts counts_;
  bool has_hooks_;
  int rank_;
  int world_size_;
  int leader_;
  bool is_unfinished_ = false;      // the temporary folder is this rank's to remove
  std::optional<FolderLock> lock_;  // of the temporary folder, on the rank that made it
  SaveContent content_;
  std::unique_ptr<StateStaging>
      staging_;  // of its tensors; nullptr: they are copied, or are what they are
};

int leader_of(const RankExchange& ranks, bool save_on_each_node) {
  return save_on_each_node ? ranks.rank() - ranks.local_rank() : 0;
}

PreparedSave::PreparedSave(FileSystem& file_system,
                           RankExchange& ranks,
                           const fs::path& folder,
                           const CheckpointObjects& objects,
                           const SaveOptions& options,
                           Existing existing)
    : impl_(std::make_unique<Impl>(file_system, ranks, folder, objects, options)) {
  impl_->begin(ranks, objects, existing);
}

PreparedSave::~PreparedSave() = default;

void PreparedSave::copy_tensors(RankExchange& ranks, CopySpace& space) {
  impl_->copy_tensors(ranks, space);
}

CheckpointInfo PreparedSave::finish(RankExchange& ranks) {
  impl_->finish(ranks);
  return impl_->info();
}

CheckpointInfo write_checkpoint(FileSystem& file_system,
                                RankExchange& ranks,
                                const fs::path& folder,
                                const CheckpointObjects& objects,
                                const SaveOptions& options,
                                Existing existing) {
  return PreparedSave(file_system, ranks, folder, objects, options, existing).finish(ranks);
}

}  // namespace accel::checkpoint

namespace accel {

CheckpointInfo save_checkpoint(const std::filesystem::path& folder,
                               const CheckpointObjects& objects,
                               const SaveOptions& options) {
  const std::unique_ptr<checkpoint::RankExchange> ranks = checkpoint::current_ranks();
  (void)checkpoint::background_saves().end(*ranks);
  return checkpoint::write_checkpoint(checkpoint::real_file_system(),
                                      *ranks,
                                      folder,
                                      objects,
                                      options,
                                      checkpoint::Existing::kReplace);
}

}  // namespace accel

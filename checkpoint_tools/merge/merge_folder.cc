#include "checkpoint_tools/merge/merge_folder.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "checkpoint_tools/merge/checkpoint_kind.h"
#include "checkpoint_tools/merge/checkpoint_removal.h"
#include "checkpoint_tools/merge/distcp_merge.h"
#include "checkpoint_tools/merge/manifest_merge.h"
#include "checkpoint_tools/merge/shard_merge.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

Result<MergeCount> merge_distcp_folder(const FolderMerge& merge,
                                       std::vector<std::string>& notices) {
  const auto metadata = read_distcp_metadata(merge.checkpoint);
  if (!metadata) return metadata.error();
  if (metadata->tensors.empty())
    return Error(ErrorCode::kCheckpointMismatch,
                 printable(merge.checkpoint.string()) + " holds no tensor",
                 "name the folder of a model");
  if (!metadata->other_values.empty()) {
    std::vector<std::string> names;
    for (const DistcpValue& value : metadata->other_values) names.push_back(value.name);
    const std::string what = some_of(names);
    if (merge.removes_checkpoint)
      return Error(ErrorCode::kUnsupported,
                   "a merge has no place for what is no tensor: " + what,
                   "merge without --remove_checkpoint_dir, which would lose it");
    notices.push_back("left out, since it is no tensor: " + what);
  }
  return merge_distcp(
      merge.checkpoint, *metadata, merge.result(), merge.format, checkpoint::real_file_system());
}

Result<MergeCount> merge_by_kind(const FolderMerge& merge,
                                 CheckpointKind kind,
                                 std::vector<std::string>& notices) {
  checkpoint::FileSystem& disk = checkpoint::real_file_system();
  switch (kind) {
    case CheckpointKind::kDistcp:
      return merge_distcp_folder(merge, notices);
    case CheckpointKind::kManifest: {
      std::error_code ignored;
      if (merge.format == WeightsFormat::kSafetensors &&
          fs::equivalent(merge.checkpoint, merge.output, ignored))
        return Error(ErrorCode::kUsage,
                     "the checkpoint has its " + weights_name(merge.format) +
                         " already, whole: the ranks write into one file",
                     "use it as it is, or name another folder for a copy");
      return merge_manifest(merge.checkpoint, merge.output, merge.format, disk);
    }
    case CheckpointKind::kShards:
      return merge_shards(merge.checkpoint, merge.result(), merge.format, disk);
  }
  return Error(ErrorCode::kInternal, "a kind of checkpoint that nobody merges");
}

// Only once the result is on the disk.
Result<void> remove(const CheckpointRemoval& removal, std::vector<std::string>& notices) {
  const auto kept = remove_checkpoint(removal, checkpoint::real_file_system());
  if (!kept) return kept.error();
  if (!kept->empty())
    notices.push_back("kept the folder " + printable(removal.folder.string()) +
                      ", which also holds " + some_of(*kept));
  return {};
}

Result<MergedFolder> merge_and_remove(const FolderMerge& merge) {
  const auto kind = find_checkpoint_kind(merge.checkpoint);
  if (!kind) return kind.error();
  std::optional<CheckpointRemoval> removal;
  if (merge.removes_checkpoint) {
    auto planned = plan_removal(merge.checkpoint, *kind);
    if (!planned) return std::move(planned).error();
    removal = *std::move(planned);
  }
  MergedFolder merged;
  const auto count = merge_by_kind(merge, *kind, merged.notices);
  if (!count) return count.error();
  merged.count = *count;
  if (removal) {
    if (const auto removed = remove(*removal, merged.notices); !removed) return removed.error();
  }
  return merged;
}

}  // namespace

// What a checkpoint asks for is bounded, but the memory of this process may have a lower bound.
Result<MergedFolder> merge_folder(const FolderMerge& merge) {
  if (merge.removes_checkpoint) {
    if (auto fault = fault_of_removal(merge.checkpoint, merge.output)) return *std::move(fault);
  }
  try {
    return merge_and_remove(merge);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory,
                 "memory ran out while " + printable(merge.checkpoint.string()) + " was merged",
                 "merge where there is more memory, or with a higher limit (`ulimit -v`)");
  }
}

std::optional<Error> fault_of_removal(const fs::path& checkpoint, const fs::path& output) {
  std::error_code ignored;
  if (fs::is_symlink(checkpoint, ignored))
    return Error(
        ErrorCode::kUsage,
        printable(checkpoint.string()) + " is a link, which --remove_checkpoint_dir leaves",
        "name the folder that it points to");
  const fs::path folder = fs::weakly_canonical(checkpoint, ignored);
  const fs::path target = fs::weakly_canonical(output, ignored);
  const auto differ = std::mismatch(folder.begin(), folder.end(), target.begin(), target.end());
  const bool is_within =
      differ.first == folder.end() ||
      (differ.first->empty() && std::next(differ.first) == folder.end());  // "folder/"
  if (!is_within) return std::nullopt;
  return Error(ErrorCode::kUsage,
               "--remove_checkpoint_dir would remove the result, which goes into " +
                   printable(target.string()),
               "name an output folder outside of the checkpoint");
}

}  // namespace accel::launcher

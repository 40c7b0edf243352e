#include "launcher/commands/merge_weights.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "checkpoint_tools/merge/checkpoint_kind.h"
#include "checkpoint_tools/merge/checkpoint_removal.h"
#include "checkpoint_tools/merge/distcp_merge.h"
#include "checkpoint_tools/merge/manifest_merge.h"
#include "checkpoint_tools/merge/shard_merge.h"
#include "checkpoint_tools/merge/weights_format.h"
#include "checkpoint_tools/models/memory_estimate.h"
#include "launcher/flags/command_parser.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCommand = "merge-weights";

struct MergeArguments {
  std::string checkpoint;
  std::string output;
  bool unsafe_serialization = false;
  bool remove_checkpoint = false;

  [[nodiscard]] WeightsFormat format() const {
    return unsafe_serialization ? WeightsFormat::kTorch : WeightsFormat::kSafetensors;
  }
  [[nodiscard]] fs::path result() const { return fs::path(output) / weights_name(format()); }
};

Result<MergeCount> merge_distcp_folder(const MergeArguments& arguments) {
  const auto metadata = read_distcp_metadata(arguments.checkpoint);
  if (!metadata) return metadata.error();
  if (metadata->tensors.empty())
    return Error(ErrorCode::kCheckpointMismatch,
                 printable(arguments.checkpoint) + " holds no tensor",
                 "name the folder of a model");
  if (!metadata->other_values.empty()) {
    const std::string what = some_of(metadata->other_values);
    if (arguments.remove_checkpoint)
      return Error(ErrorCode::kUnsupported,
                   "a merge has no place for what is no tensor: " + what,
                   "merge without --remove_checkpoint_dir, which would lose it");
    print_notice(kCommand, "left out, since it is no tensor: " + what);
  }
  return merge_distcp(arguments.checkpoint,
                      *metadata,
                      arguments.result(),
                      arguments.format(),
                      checkpoint::real_file_system());
}

Result<MergeCount> merge_by_kind(const MergeArguments& arguments, CheckpointKind kind) {
  checkpoint::FileSystem& disk = checkpoint::real_file_system();
  switch (kind) {
    case CheckpointKind::kDistcp:
      return merge_distcp_folder(arguments);
    case CheckpointKind::kManifest: {
      std::error_code ignored;
      if (!arguments.unsafe_serialization &&
          fs::equivalent(arguments.checkpoint, arguments.output, ignored))
        return Error(ErrorCode::kUsage,
                     "the checkpoint has its " + weights_name(arguments.format()) +
                         " already, whole: the ranks write into one file",
                     "use it as it is, or name another folder for a copy");
      return merge_manifest(arguments.checkpoint, arguments.output, arguments.format(), disk);
    }
    case CheckpointKind::kShards:
      return merge_shards(arguments.checkpoint, arguments.result(), arguments.format(), disk);
  }
  return Error(ErrorCode::kInternal, "a kind of checkpoint that nobody merges");
}

// Only once the result is on the disk.
Result<void> remove(const CheckpointRemoval& removal) {
  const auto kept = remove_checkpoint(removal, checkpoint::real_file_system());
  if (!kept) return kept.error();
  if (!kept->empty())
    print_notice(kCommand,
                 "kept the folder " + printable(removal.folder.string()) + ", which also holds " +
                     some_of(*kept));
  return {};
}

Result<void> merge_checkpoint(const MergeArguments& arguments) {
  const auto kind = find_checkpoint_kind(arguments.checkpoint);
  if (!kind) return kind.error();
  std::optional<CheckpointRemoval> removal;
  if (arguments.remove_checkpoint) {
    auto planned = plan_removal(arguments.checkpoint, *kind);
    if (!planned) return std::move(planned).error();
    removal = *std::move(planned);
  }
  const auto count = merge_by_kind(arguments, *kind);
  if (!count) return count.error();
  print_notice(kCommand,
               "merged " + std::to_string(count->tensors) + " tensors (" +
                   readable_bytes(static_cast<double>(count->bytes)) + ") into " +
                   printable(arguments.result().string()));
  return removal ? remove(*removal) : Result<void>();
}

// What a checkpoint asks for is bounded, but the memory of this process may have a lower bound.
Result<void> run_within_memory(const MergeArguments& arguments) {
  try {
    return merge_checkpoint(arguments);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory,
                 "memory ran out while " + printable(arguments.checkpoint) + " was merged",
                 "merge where there is more memory, or with a higher limit (`ulimit -v`)");
  }
}

std::optional<Error> fault_of_merge(const MergeArguments& arguments) {
  if (arguments.remove_checkpoint) return fault_of_removal(arguments.checkpoint, arguments.output);
  return std::nullopt;
}

void add_merge_options(CLI::App& app, MergeArguments& arguments) {
  app.add_option("checkpoint_directory",
                 arguments.checkpoint,
                 "a folder with .metadata and .distcp files, as FSDP\n"
                 "saves; a checkpoint of accel; or a folder with\n"
                 "model.safetensors.index.json")
      ->required();
  app.add_option("output_path", arguments.output, "the folder for the result")->required();
  app.add_flag("--unsafe_serialization",
               arguments.unsafe_serialization,
               "write pytorch_model.bin, a pickle as torch.save()\n"
               "writes it, instead of model.safetensors");
  app.add_flag("--remove_checkpoint_dir",
               arguments.remove_checkpoint,
               "remove the checkpoint when the result is on the disk");
}

}  // namespace

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

int merge_weights_command(const std::vector<std::string>& words) {
  MergeArguments arguments;
  CommandParser line(kCommand,
                     "Merge the parts of a sharded checkpoint into one model.safetensors.");
  add_merge_options(line.app(), arguments);
  if (const auto status = line.parse(words)) return *status;
  if (const auto fault = fault_of_merge(arguments)) return print_error(kCommand, *fault);
  if (const auto done = run_within_memory(arguments); !done)
    return print_error(kCommand, done.error());
  return 0;
}

}  // namespace accel::launcher

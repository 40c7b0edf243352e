#include "launcher/commands/merge_weights.h"

#include "checkpoint_tools/merge/leftovers.h"
#include "checkpoint_tools/merge/merge_folder.h"
#include "checkpoint_tools/models/memory_estimate.h"
#include "launcher/flags/command_parser.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kCommand = "merge-weights";

struct MergeArguments {
  std::string checkpoint;
  std::string output;
  bool unsafe_serialization = false;
  bool remove_checkpoint = false;
};

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

int merge_weights_command(const std::vector<std::string>& words) {
  MergeArguments arguments;
  CommandParser line(kCommand,
                     "Merge the parts of a sharded checkpoint into one model.safetensors.");
  add_merge_options(line.app(), arguments);
  if (const auto status = line.parse(words)) return *status;
  Leftovers::remove_on_signals();
  const FolderMerge merge{.checkpoint = arguments.checkpoint,
                          .output = arguments.output,
                          .format = arguments.unsafe_serialization ? WeightsFormat::kTorch
                                                                   : WeightsFormat::kSafetensors,
                          .removes_checkpoint = arguments.remove_checkpoint};
  const auto merged = merge_folder(merge);
  if (!merged) return print_error(kCommand, merged.error());
  for (const std::string& notice : merged->notices) print_notice(kCommand, notice);
  print_notice(kCommand,
               "merged " + std::to_string(merged->count.tensors) + " tensors (" +
                   readable_bytes(static_cast<double>(merged->count.bytes)) + ") into " +
                   printable(merge.result().string()));
  return 0;
}

}  // namespace accel::launcher

// Objects in files of their own, for Python and from it.

#include <tuple>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/saved_object.h>
#include <accel/state.h>

#include "checkpoint_tools/merge/merge_folder.h"
#include "libaccel/engine/checkpoint/files/object_file.h"
#include "libaccel/engine/checkpoint/files/python_file.h"
#include "libaccel/engine/checkpoint/states/accelerate_states.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/printable.h"
#include "safetensors/hidden_file.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

bool writes_here(bool save_on_each_node) {
  if (!PartialState::initialized()) return true;
  const PartialState state;
  return save_on_each_node ? state.is_local_main_process() : state.is_main_process();
}

safetensors::TensorMap named_tensors(const c10::IValue& object) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kUnsupported,
                "a safetensors file holds tensors by name: " + what,
                "save it with safe_serialization = false");
  };
  if (!object.isGenericDict()) refuse("the object is of the type " + object.tagKind());
  safetensors::TensorMap tensors;
  for (const auto& entry : object.toGenericDict()) {
    if (!entry.key().isString()) refuse("a key is of the type " + entry.key().tagKind());
    const std::string& name = entry.key().toStringRef();
    if (!entry.value().isTensor())
      refuse(printable(name) + " is of the type " + entry.value().tagKind());
    tensors.insert_or_assign(name, entry.value().toTensor());
  }
  return tensors;
}

fs::path custom_file(const fs::path& folder, std::size_t index) {
  return folder / (checkpoint::custom_stem(index) + ".pkl");
}

}  // namespace

void save(const c10::IValue& object, const fs::path& file, const SaveObjectOptions& options) {
  if (!writes_here(options.save_on_each_node)) return;
  if (options.safe_serialization)
    return safetensors::save_file(named_tensors(object), file, {{"format", "pt"}});
  const checkpoint::ObjectFile planned(object, file.stem().string());
  safetensors::HiddenFile hidden(file, planned.bytes());
  std::uint64_t end = 0;
  planned.write([&](std::span<const std::byte> bytes) {
    hidden.write_at(end, bytes);
    end += bytes.size();
  });
  hidden.publish();
}

c10::IValue load(const fs::path& file) {
  checkpoint::PythonFile opened(file);
  auto value = opened.value(opened.pickle().root());
  if (!value)
    throw Error(ErrorCode::kUnsupported,
                printable(file.string()) +
                    " holds an object of a class of Python, or one that contains itself",
                "save plain values and tensors: numbers, texts, lists, tuples and dicts");
  return *std::move(value);
}

safetensors::TensorMap load_state_dict(const fs::path& file) {
  if (!checkpoint::is_python_file(file)) return safetensors::load_file(file);
  return checkpoint::PythonFile(file).tensors();
}

void save_custom_state(const Stateful& object,
                       const fs::path& folder,
                       std::size_t index,
                       bool save_on_each_node) {
  if (!writes_here(save_on_each_node)) return;
  save(checkpoint::accelerate_state(object.state_dict()),
       custom_file(folder, index),
       {.save_on_each_node = save_on_each_node});
}

void load_custom_state(Stateful& object, const fs::path& folder, std::size_t index) {
  checkpoint::PythonFile file(custom_file(folder, index));
  std::vector<std::string> left_out;
  object.load_state_dict(checkpoint::read_accelerate_state(file, left_out));
}

MergedWeights merge_fsdp_weights(const fs::path& checkpoint_dir,
                                 const fs::path& output_path,
                                 const MergeWeightsOptions& options) {
  if (!writes_here(/*save_on_each_node=*/false)) return {};
  const launcher::FolderMerge merge{.checkpoint = checkpoint_dir,
                                    .output = output_path,
                                    .format = options.safe_serialization
                                                  ? launcher::WeightsFormat::kSafetensors
                                                  : launcher::WeightsFormat::kTorch,
                                    .removes_checkpoint = options.remove_checkpoint_dir};
  launcher::MergedFolder merged = or_throw(launcher::merge_folder(merge));
  return {.file = merge.result(),
          .tensors = merged.count.tensors,
          .bytes = merged.count.bytes,
          .notices = std::move(merged.notices)};
}

}  // namespace accel

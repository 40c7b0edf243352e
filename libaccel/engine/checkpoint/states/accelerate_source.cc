#include "libaccel/engine/checkpoint/states/accelerate_source.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <torch/nn/module.h>

#include <accel/checkpoint_names.h>
#include <accel/error.h>
#include <accel/safetensors_reader.h>

#include "libaccel/engine/checkpoint/files/distcp_parts.h"
#include "libaccel/engine/checkpoint/files/state_files.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/states/accelerate_states.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "runtime/checkpoint/layout.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWrapper = "module.";

void add_whole(LoadedParts& loaded,
               const std::string& name,
               const at::Tensor& tensor,
               const PartsWanted& wanted) {
  const safetensors::TensorSpec spec = spec_of(name, tensor);
  add_loaded(loaded, {.name = name, .dtype = spec.dtype, .shape = spec.shape}, tensor, wanted);
}

bool are_wrapped(const std::vector<std::string>& names) {
  return !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
    return name.starts_with(kWrapper);
  });
}

std::vector<std::string> state_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const NamedTensor& item : state_of(module)) names.push_back(item.name);
  return names;
}

// "optimizer_1.json" -> "optimizer_1"
std::string stem_of(const std::string& file) {
  return file.substr(0, file.rfind('.'));
}

// How many of "kind.suffix", "kind_1.suffix" ... there are.
template <typename IsThere>
std::int64_t count_files(IsThere is_there) {
  std::int64_t count = 0;
  while (is_there(static_cast<std::size_t>(count))) ++count;
  return count;
}

// What Accelerate calls the state that is our <stem>.json.
std::string file_of_state(const std::string& stem) {
  if (stem == "scaler") return "scaler.pt";
  if (stem.starts_with("scheduler")) return stem + ".bin";
  return stem + ".pkl";
}

// "model" -> 0, "model_1" -> 1
std::string number_in(const std::string& stem) {
  const std::size_t place = stem.rfind('_');
  return place == std::string::npos ? "0" : stem.substr(place + 1);
}

std::string weights_file(const std::string& stem) {
  return "pytorch_" + stem + ".bin";
}
// "model_1" -> "pytorch_model_fsdp_1.bin"
std::string fsdp_weights_file(const std::string& stem) {
  return std::string(kFsdpModelName) + stem.substr(std::string_view("model").size()) + ".bin";
}
// "model" -> "pytorch_model_fsdp_0"
std::string fsdp_weights_folder(const std::string& stem) {
  return std::string(kFsdpModelName) + "_" + number_in(stem);
}
// "optimizer" -> "optimizer_0"
std::string fsdp_optimizer_folder(const std::string& stem) {
  return std::string(kOptimizerName) + "_" + number_in(stem);
}

// Weights of FSDP, or an optimizer: what a program may have saved by itself.
bool has_files_of_python(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kFsdpModelName)) return true;
    if (name.starts_with(kOptimizerName) && (name.ends_with(".bin") || entry.is_directory(ignored)))
      return true;
  }
  return false;
}

// Folders of Accelerate that are named and not read.
void refuse_unread(const fs::path& folder) {
  std::error_code ignored;
  for (const char* const file :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"})
    if (fs::exists(folder / kModelName / file, ignored))
      throw Error(ErrorCode::kUnsupported,
                  folder.string() +
                      " was saved with DeepSpeed: its weights and optimizers lie in " +
                      std::string(kModelName) + "/ in DeepSpeed's own parts",
                  "run the zero_to_fp32.py that lies beside them, and read what it writes with "
                  "load_checkpoint_in_model()");
  for (const char* const file : {"_rank0.bin", "_0_rank0.bin"})
    if (fs::exists(folder / (std::string(kFsdpModelName) + file), ignored))
      throw Error(ErrorCode::kUnsupported,
                  folder.string() + " has a file of weights for each rank (" +
                      std::string(kFsdpModelName) + file +
                      "), as FSDP's LOCAL_STATE_DICT and use_dcp=False leave them",
                  "save it with FULL_STATE_DICT or SHARDED_STATE_DICT");
}

}  // namespace

AccelerateSource::AccelerateSource(fs::path folder,
                                   const CheckpointObjects& objects,
                                   std::string part)
    : folder_(std::move(folder)), objects_(objects), part_(std::move(part)) {
  const bool has_manifest = is_there(std::string(kManifestName));
  const bool is_of_accelerate = is_there(random_stem(0) + ".pkl") || has_files_of_python(folder_);
  if (has_manifest || !is_of_accelerate) {
    verified_.emplace(folder_);
    manifest_ = verified_->manifest();
    if (!is_beside_checkpoint()) return;
    verified_.reset();
  }
  refuse_unread(folder_);
  manifest_ = counted();
  manifest_.step = saved_step();
  notice("has no manifest: its files could not be compared with what was saved");
  if (!objects_.loaders.empty())
    notice("has no places of data loaders, which begin their epoch anew (skip_first_batches())");
  for (std::size_t i = 0; i < objects_.loaders.size(); ++i)
    if (is_there(numbered("sampler", i) + ".bin"))
      notice("has " + numbered("sampler", i) +
             ".bin, an object of Python, which is left alone: seed the sampler as it was");
}

Manifest AccelerateSource::counted() const {
  const auto numbered_files = [&](const std::string& kind) {
    return count_files([&](std::size_t i) { return is_there(numbered(kind, i) + ".bin"); });
  };
  Manifest manifest;
  manifest.objects.models = count_files([&](std::size_t i) {
    const std::string stem = numbered("model", i);
    return is_there(stem + std::string(kTensorSuffix)) || is_there(weights_file(stem)) ||
           is_there(fsdp_weights_file(stem)) || is_folder(fsdp_weights_folder(stem));
  });
  manifest.objects.optimizers = count_files([&](std::size_t i) {
    const std::string stem = numbered("optimizer", i);
    return is_there(stem + ".bin") || is_folder(fsdp_optimizer_folder(stem));
  });
  manifest.objects.schedulers = numbered_files("scheduler");
  manifest.objects.loaders = kUnknownCount;
  manifest.objects.custom =
      count_files([&](std::size_t i) { return is_there(custom_stem(i) + ".pkl"); });
  manifest.objects.has_scaler = is_there("scaler.pt");
  manifest.world_size = static_cast<int>(count_files(
      [&](std::size_t i) { return is_there(random_stem(static_cast<int>(i)) + ".pkl"); }));
  return manifest;
}

bool AccelerateSource::is_beside_checkpoint() const {
  if (part_.empty()) return false;
  const bool is_model = part_.starts_with("model");
  const std::string file = is_model ? fsdp_weights_file(part_) : part_ + ".bin";
  const std::string parts = is_model ? fsdp_weights_folder(part_) : fsdp_optimizer_folder(part_);
  std::error_code ignored;
  return !verified_->has(file) &&
         (fs::is_regular_file(folder_ / file, ignored) ||
          fs::is_regular_file(folder_ / parts / launcher::kDistcpMetadataName, ignored));
}

// The same on every rank, so that they agree on where the run goes on.
std::int64_t AccelerateSource::saved_step() {
  if (!is_there(random_stem(0) + ".pkl")) return 0;
  return std::get<std::int64_t>(state(random_stem(0)).values.at("step"));
}

bool AccelerateSource::is_there(const std::string& file) const {
  if (verified_) return verified_->has(file);
  std::error_code error;
  return fs::is_regular_file(folder_ / file, error);
}

bool AccelerateSource::is_folder(const std::string& name) const {
  std::error_code error;
  return !verified_ && fs::is_regular_file(folder_ / name / launcher::kDistcpMetadataName, error);
}

bool AccelerateSource::has(const std::string& file) const {
  return is_there(file) || is_there(file_of_state(stem_of(file)));
}

std::unique_ptr<PythonFile> AccelerateSource::open(const std::string& file) {
  if (verified_) verified_->check(file);
  const bool is_random = file.starts_with("random_states");
  return std::make_unique<PythonFile>(
      folder_ / file, is_random ? names_in_random_states() : std::span<const std::string_view>{});
}

StateDict& AccelerateSource::state(const std::string& stem) {
  if (const auto found = states_.find(stem); found != states_.end()) return found->second;
  const std::string name = file_of_state(stem);
  const auto file = open(name);
  if (stem.starts_with("random_states"))
    return states_.emplace(stem, read_accelerate_random_states(*file)).first->second;
  std::vector<std::string> left_out;
  StateDict state = read_accelerate_state(*file, left_out);
  // Functions of schedules and other things that only Python has.
  if (!left_out.empty() && stem.starts_with("custom"))
    notice("has values in " + name + " that a StateDict cannot hold, the first is " +
           left_out.front());
  return states_.emplace(stem, std::move(state)).first->second;
}

AccelerateSource::FoundOptimizer& AccelerateSource::optimizer(const std::string& stem) {
  if (const auto found = optimizers_.find(stem); found != optimizers_.end()) return found->second;
  std::size_t index = 0;
  while (index < objects_.optimizers.size() && numbered("optimizer", index) != stem) ++index;
  if (index == objects_.optimizers.size())
    throw Error(ErrorCode::kCheckpointMismatch, folder_.string() + " has no " + stem + ".bin");
  FoundOptimizer found;
  PythonOptimizer python;
  if (const std::string name = fsdp_optimizer_folder(stem);
      !is_there(stem + ".bin") && is_folder(name)) {
    found.metadata = or_throw(launcher::read_distcp_metadata(folder_ / name));
    python = read_distcp_optimizer(folder_ / name, found.metadata);
  } else {
    python = read_python_optimizer(*open(stem + ".bin"));
  }
  found.saved = read_accelerate_optimizer(
      python, *objects_.optimizers[index], ParameterNames(objects_.models));
  found.stored = std::move(python.stored);
  return optimizers_.emplace(stem, std::move(found)).first->second;
}

std::string AccelerateSource::text(const std::string& file) {
  if (verified_ && verified_->has(file)) return verified_->text(file);
  const std::string stem = stem_of(file);
  return stem.starts_with("optimizer") ? optimizer(stem).saved.json : encode_state(state(stem));
}

LoadedParts AccelerateSource::parts(const std::string& file,
                                    const PartsWanted& wanted,
                                    LoadedMemory memory) {
  const std::string stem = stem_of(file);
  if (stem.starts_with("model")) return weights(stem, wanted, memory);
  if (verified_ && verified_->has(file)) return verified_->parts(file, wanted, memory);
  if (stem.starts_with("optimizer")) return optimizer_parts(stem, wanted);
  LoadedParts loaded;
  for (const auto& [name, tensor] : state(stem).tensors) add_whole(loaded, name, tensor, wanted);
  return loaded;
}

LoadedParts AccelerateSource::optimizer_parts(const std::string& stem, const PartsWanted& wanted) {
  FoundOptimizer& found = optimizer(stem);
  LoadedParts loaded;
  std::unordered_map<const launcher::DistcpTensor*, std::string> names;  // of what is in the folder
  const safetensors::TensorMap tensors = std::move(found.saved.tensors);
  for (const auto& [name, tensor] : tensors) {
    const auto stored = found.stored.find(tensor.unsafeGetTensorImpl());
    if (stored == found.stored.end())
      add_whole(loaded, name, tensor, wanted);
    else
      names.emplace(&found.metadata.tensors[stored->second], name);
  }
  if (names.empty()) return loaded;
  read_distcp_parts(
      loaded,
      folder_ / fsdp_optimizer_folder(stem),
      found.metadata,
      [&names](const launcher::DistcpTensor& tensor) -> std::optional<std::string> {
        const auto name = names.find(&tensor);
        return name == names.end() ? std::nullopt : std::optional(name->second);
      },
      wanted);
  return loaded;
}

// A model whose own names all begin so was not wrapped, unless the file has it twice.
bool AccelerateSource::strips_wrapper(const std::vector<std::string>& names) const {
  if (!are_wrapped(names)) return false;
  const bool is_own = std::ranges::any_of(objects_.models, [](const torch::nn::Module* model) {
    return are_wrapped(state_names(*model));
  });
  const std::string twice = std::string(kWrapper) + std::string(kWrapper);
  return !is_own || std::ranges::all_of(
                        names, [&](const std::string& name) { return name.starts_with(twice); });
}

LoadedParts AccelerateSource::weights(const std::string& stem,
                                      const PartsWanted& wanted,
                                      LoadedMemory memory) {
  const std::string file = stem + std::string(kTensorSuffix);
  const fs::path parts_folder = folder_ / fsdp_weights_folder(stem);
  std::vector<std::string> names;
  safetensors::TensorMap pickled;
  std::optional<launcher::DistcpMetadata> metadata;
  const bool is_of_fsdp =
      !part_.empty() && (is_there(fsdp_weights_file(stem)) || is_folder(fsdp_weights_folder(stem)));
  std::string pickle =
      !is_of_fsdp && is_there(weights_file(stem)) ? weights_file(stem) : fsdp_weights_file(stem);
  if (!is_of_fsdp && is_there(file)) {
    pickle.clear();
    // What is wrong with it is said below.
    if (const auto reader = safetensors::Reader::open(folder_ / file))
      for (const auto& info : reader->header().tensors) names.push_back(info.name);
  } else if (is_there(pickle)) {
    pickled = open(pickle)->tensors();
    for (const auto& [name, tensor] : pickled) names.push_back(name);
  } else {
    metadata = or_throw(launcher::read_distcp_metadata(parts_folder));
    for (const launcher::DistcpTensor& tensor : metadata->tensors) names.push_back(tensor.name);
  }
  if (!metadata && is_folder(fsdp_weights_folder(stem)))
    notice("has weights in " + fsdp_weights_folder(stem) + " beside " +
           (pickle.empty() ? file : pickle) + ", which alone was read");
  const std::size_t skipped = strips_wrapper(names) ? kWrapper.size() : 0;
  const auto wanted_here = [&](safetensors::TensorInfo info) {
    info.name = info.name.substr(skipped);
    return wanted(info);
  };
  LoadedParts loaded;
  if (metadata) {
    const auto same_name = [](const launcher::DistcpTensor& tensor) {
      return std::optional(tensor.name);
    };
    read_distcp_parts(loaded, parts_folder, *metadata, same_name, wanted_here);
  } else if (!pickle.empty()) {
    for (const auto& [name, tensor] : pickled) add_whole(loaded, name, tensor, wanted_here);
  } else {
    loaded = verified_ ? verified_->parts(file, wanted_here, memory)
                       : std::move(read_hashed_file(folder_ / file, wanted_here, memory).loaded);
  }
  if (skipped == 0) return loaded;
  safetensors::TensorMap renamed;
  for (auto& [name, tensor] : loaded.tensors) renamed.emplace(name.substr(skipped), tensor);
  loaded.tensors = std::move(renamed);
  return loaded;
}

}  // namespace accel::checkpoint

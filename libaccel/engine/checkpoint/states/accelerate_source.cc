#include "libaccel/engine/checkpoint/states/accelerate_source.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/safetensors_reader.h>

#include "libaccel/engine/checkpoint/files/state_files.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/states/accelerate_states.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "runtime/checkpoint/layout.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWrapper = "module.";

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

std::string weights_file(const std::string& stem) {
  return "pytorch_" + stem + ".bin";
}

}  // namespace

AccelerateSource::AccelerateSource(fs::path folder, const CheckpointObjects& objects)
    : folder_(std::move(folder)), objects_(objects) {
  const bool has_manifest = is_there(std::string(kManifestName));
  const bool is_of_accelerate = is_there(random_stem(0) + ".pkl") || is_there("optimizer.bin");
  if (has_manifest || !is_of_accelerate) {
    verified_.emplace(folder_);
    manifest_ = verified_->manifest();
    return;
  }
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
    return is_there(stem + std::string(kTensorSuffix)) || is_there(weights_file(stem));
  });
  manifest.objects.optimizers = numbered_files("optimizer");
  manifest.objects.schedulers = numbered_files("scheduler");
  manifest.objects.loaders = kUnknownCount;
  manifest.objects.custom =
      count_files([&](std::size_t i) { return is_there(custom_stem(i) + ".pkl"); });
  manifest.objects.has_scaler = is_there("scaler.pt");
  manifest.world_size = static_cast<int>(count_files(
      [&](std::size_t i) { return is_there(random_stem(static_cast<int>(i)) + ".pkl"); }));
  return manifest;
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

SavedOptimizer& AccelerateSource::optimizer(const std::string& stem) {
  if (const auto found = optimizers_.find(stem); found != optimizers_.end()) return found->second;
  std::size_t index = 0;
  while (index < objects_.optimizers.size() && numbered("optimizer", index) != stem) ++index;
  if (index == objects_.optimizers.size())
    throw Error(ErrorCode::kCheckpointMismatch, folder_.string() + " has no " + stem + ".bin");
  const auto file = open(stem + ".bin");
  return optimizers_
      .emplace(stem,
               read_accelerate_optimizer(
                   *file, *objects_.optimizers[index], ParameterNames(objects_.models)))
      .first->second;
}

std::string AccelerateSource::text(const std::string& file) {
  if (verified_ && verified_->has(file)) return verified_->text(file);
  const std::string stem = stem_of(file);
  return stem.starts_with("optimizer") ? optimizer(stem).json : encode_state(state(stem));
}

LoadedParts AccelerateSource::parts(const std::string& file, const PartsWanted& wanted) {
  const std::string stem = stem_of(file);
  if (stem.starts_with("model")) return weights(stem, wanted);
  if (verified_ && verified_->has(file)) return verified_->parts(file, wanted);
  const safetensors::TensorMap tensors =
      stem.starts_with("optimizer") ? std::move(optimizer(stem).tensors) : state(stem).tensors;
  LoadedParts loaded;
  for (const auto& [name, tensor] : tensors) {
    const safetensors::TensorSpec spec = spec_of(name, tensor);
    add_loaded(loaded, {.name = name, .dtype = spec.dtype, .shape = spec.shape}, tensor, wanted);
  }
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

LoadedParts AccelerateSource::weights(const std::string& stem, const PartsWanted& wanted) {
  const std::string file = stem + std::string(kTensorSuffix);
  std::vector<std::string> names;
  std::unique_ptr<PythonFile> pickled;
  safetensors::TensorMap tensors;
  if (is_there(file)) {
    // What is wrong with it is said below.
    if (const auto reader = safetensors::Reader::open(folder_ / file))
      for (const auto& info : reader->header().tensors) names.push_back(info.name);
  } else {
    pickled = open(weights_file(stem));
    tensors = pickled->tensors();
    for (const auto& [name, tensor] : tensors) names.push_back(name);
  }
  const std::size_t skipped = strips_wrapper(names) ? kWrapper.size() : 0;
  const auto wanted_here = [&](safetensors::TensorInfo info) {
    info.name = info.name.substr(skipped);
    return wanted(info);
  };
  LoadedParts loaded;
  if (pickled) {
    for (const auto& [name, tensor] : tensors) {
      const safetensors::TensorSpec spec = spec_of(name, tensor);
      add_loaded(
          loaded, {.name = name, .dtype = spec.dtype, .shape = spec.shape}, tensor, wanted_here);
    }
  } else {
    loaded = verified_ ? verified_->parts(file, wanted_here)
                       : std::move(read_hashed_file(folder_ / file, wanted_here).loaded);
  }
  if (skipped == 0) return loaded;
  safetensors::TensorMap renamed;
  for (auto& [name, tensor] : loaded.tensors) renamed.emplace(name.substr(skipped), tensor);
  loaded.tensors = std::move(renamed);
  return loaded;
}

}  // namespace accel::checkpoint

// Reading a checkpoint.
//
// A load that fails half way would leave a model that is neither the old nor the new one. So it has
// two halves: staging reads every file this rank needs, or maps it, compares size and hash with the
// manifest and names, shapes and types with the objects; then the ranks agree; only then is
// anything changed. Objects of the user's own (schedulers, loaders, registered ones) may still
// refuse their state in load_state_dict(); they come before the tensors, and the ranks agree on
// that too. Load hooks say which models take part: they run when all else is staged, before the weights are.

#include "libaccel/engine/checkpoint/series/checkpoint_reader.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/files/shared_file.h"
#include "libaccel/engine/checkpoint/files/state_files.h"
#include "libaccel/engine/checkpoint/files/target_folder.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/states/accelerate_source.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "runtime/checkpoint/folder_exchange.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

// A number of objects that differs, as "2 models were saved, 1 is there now".
void compare_counts(const fs::path& folder,
                    const ObjectCounts& saved,
                    const CheckpointObjects& objects) {
  std::string differences;
  const auto compare = [&](const char* what, std::int64_t then, size_t now) {
    if (then == static_cast<std::int64_t>(now)) return;
    if (!differences.empty()) differences += ", ";
    differences += std::to_string(then) + " " + what + " (now " + std::to_string(now) + ")";
  };
  // Hooks may say later which models take part.
  if (objects.choose_models.empty()) compare("models", saved.models, objects.models.size());
  compare("optimizers", saved.optimizers, objects.optimizers.size());
  compare("schedulers", saved.schedulers, objects.schedulers.size());
  if (saved.loaders != kUnknownCount) compare("loaders", saved.loaders, objects.loaders.size());
  compare("registered objects", saved.custom, objects.custom.size());
  if (!differences.empty()) {
    throw Error(ErrorCode::kCheckpointMismatch,
                folder.string() + " was saved with other objects: " + differences);
  }
}

}  // namespace

// Fills a StagedCheckpoint, file by file.
class Stager {
 public:
  Stager(StagedCheckpoint& staged,
         CheckpointSource& source,
         const CheckpointObjects& objects,
         int rank)
      : staged_(staged),
        source_(source),
        folder_(source.name()),
        manifest_(source.manifest()),
        objects_(objects),
        rank_(rank) {}

  void run() {
    staged_.info_.version = manifest_.version;
    staged_.info_.world_size = manifest_.world_size;
    staged_.info_.step = manifest_.step;
    staged_.info_.generation = manifest_.generation;
    staged_.info_.iteration = manifest_.iteration;
    compare_counts(folder_, manifest_.objects, objects_);

    for (size_t i = 0; i < objects_.schedulers.size(); ++i) {
      stage_state(numbered("scheduler", i), *objects_.schedulers[i], staged_.states_);
    }
    const bool has_loaders = manifest_.objects.loaders != kUnknownCount;
    for (size_t i = 0; has_loaders && i < objects_.loaders.size(); ++i) {
      stage_state(numbered("loader", i), *objects_.loaders[i], staged_.states_);
    }
    stage_scaler();
    for (size_t i = 0; i < objects_.custom.size(); ++i) {
      stage_state(custom_stem(i), *objects_.custom[i], staged_.states_);
    }
    if (objects_.choose_models.empty()) stage_models(objects_.models);
    stage_optimizers();
    stage_random();
    for (std::string& text : source_.notices()) staged_.notices_.push_back(std::move(text));
  }

  void stage_models(const std::vector<torch::nn::Module*>& models) {
    if (std::cmp_not_equal(manifest_.objects.models, models.size())) {
      throw Error(ErrorCode::kCheckpointMismatch,
                  folder_.string() +
                      " was saved with other objects: " + std::to_string(manifest_.objects.models) +
                      " models (now " + std::to_string(models.size()) + ")");
    }
    for (size_t i = 0; i < models.size(); ++i) {
      const std::string name = numbered("model", i) + std::string(kTensorSuffix);
      std::map<std::string, at::Tensor> by_name;
      for (const NamedTensor& item : state_of(*models[i])) by_name.emplace(item.name, item.tensor);
      const PartsWanted wanted = [&](const safetensors::TensorInfo& info) {
        const auto found = by_name.find(info.name);
        return found == by_name.end() ? std::nullopt : places_of(found->second, info);
      };
      auto loaded =
          std::make_shared<LoadedParts>(source_.parts(name, wanted, LoadedMemory::kMapped));
      note_mapped(*loaded);
      FittedState fitted = fit_state(*models[i],
                                     loaded->tensors,
                                     folder_ / name,
                                     {.strict = objects_.strict, .divided = objects_.divided});
      staged_.models_.emplace_back(
          [fitted = std::move(fitted), loaded, present = objects_.divided] {
            fitted.apply(loaded->divided, present);
          });
    }
  }

 private:
  void stage_optimizers() {
    const ParameterNames names(objects_.models);
    for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
      const std::string stem = numbered("optimizer", i);
      const PartsWanted wanted = [&](const safetensors::TensorInfo& info) {
        const at::Tensor* parameter = names.parameter_of(info.name);
        return parameter == nullptr ? std::nullopt : places_of(*parameter, info);
      };
      LoadedParts loaded =
          source_.parts(stem + std::string(kTensorSuffix),
                        wanted,
                        copies_loaded_states(*objects_.optimizers[i]) ? LoadedMemory::kMapped
                                                                      : LoadedMemory::kOwn);
      note_mapped(loaded);
      for (const auto& [name, tensor] : loaded.tensors) {
        if (const auto* read = loaded.divided.find(tensor)) objects_.divided->add(tensor, *read);
      }
      SavedOptimizer saved{std::move(loaded.tensors),
                           source_.text(stem + std::string(kValueSuffix))};
      StatePlaces* const places =
          i < objects_.state_places.size() ? objects_.state_places[i] : nullptr;
      staged_.tensors_.push_back(
          prepare_optimizer_load(*objects_.optimizers[i], names, std::move(saved), stem, places));
    }
  }

  // What this rank wants of a tensor of the file that belongs to `parameter`: its parts, when it is divided. One of another
  // shape is read whole and refused later, with both shapes.
  [[nodiscard]] std::optional<std::vector<PartPlace>> places_of(
      const at::Tensor& parameter, const safetensors::TensorInfo& info) const {
    const auto* parts = objects_.divided == nullptr ? nullptr : objects_.divided->find(parameter);
    const bool has_shape =
        std::equal(parameter.sizes().begin(),
                   parameter.sizes().end(),
                   info.shape.begin(),
                   info.shape.end(),
                   [](std::int64_t a, std::uint64_t b) { return std::cmp_equal(a, b); });
    if (parts == nullptr || !has_shape) return std::nullopt;
    std::vector<PartPlace> places;
    for (const TensorPart& part : *parts) places.push_back({part.begin, part.values.numel()});
    return places;
  }

  void stage_scaler() {
    const bool is_saved = manifest_.objects.has_scaler;
    if (objects_.scaler != nullptr && is_saved) {
      stage_state("scaler", *objects_.scaler, staged_.states_);
    } else if (objects_.scaler != nullptr) {
      notice("has no state for the gradient scaler, which starts anew");
    } else if (is_saved) {
      notice("has the state of a gradient scaler, which is not used now");
    }
  }

  void stage_random() {
    if (objects_.random == nullptr) return;
    const std::string stem = random_stem(rank_);
    if (source_.has(stem + std::string(kValueSuffix))) {
      stage_state(stem, *objects_.random, staged_.tensors_);
    } else {
      notice("has no random state for rank " + std::to_string(rank_) + ": it was saved by " +
             std::to_string(manifest_.world_size) +
             " ranks; this rank's generators go on as they are");
    }
  }

  void stage_state(const std::string& stem,
                   Stateful& object,
                   std::vector<std::function<void()>>& actions) {
    DecodedState decoded = decode_state(source_.text(stem + std::string(kValueSuffix)));
    auto state = std::make_shared<StateDict>(std::move(decoded.state));
    if (decoded.has_tensors) state->tensors = tensors(stem + std::string(kTensorSuffix));
    actions.emplace_back([&object, state, what = (folder_ / stem).string()] {
      try {
        object.load_state_dict(*state);
      } catch (Error& error) {
        error.while_doing("loading " + what);
        throw;
      }
    });
  }

  safetensors::TensorMap tensors(const std::string& name) {
    const PartsWanted all = [](const safetensors::TensorInfo&) { return std::nullopt; };
    return source_.parts(name, all, LoadedMemory::kOwn).tensors;
  }

  void note_mapped(const LoadedParts& loaded) {
    if (loaded.mapped != nullptr) staged_.mapped_.push_back(loaded.mapped);
  }

  void notice(const std::string& text) {
    staged_.notices_.push_back(folder_.string() + " " + text);
  }

  StagedCheckpoint& staged_;
  CheckpointSource& source_;
  const fs::path& folder_;  // what messages call it
  const Manifest& manifest_;
  const CheckpointObjects& objects_;
  int rank_;
};

StagedCheckpoint::StagedCheckpoint(CheckpointSource& source,
                                   const CheckpointObjects& objects,
                                   int rank) {
  Stager(*this, source, objects, rank).run();
}

void StagedCheckpoint::stage_models(CheckpointSource& source,
                                    const CheckpointObjects& objects,
                                    const std::vector<torch::nn::Module*>& models) {
  Stager(*this, source, objects, 0).stage_models(models);
}

void StagedCheckpoint::apply_states() {
  for (const auto& file : mapped_) file->verify_unchanged();
  for (const auto& action : states_) action();
}

void StagedCheckpoint::apply_tensors() {
  for (const auto& action : models_) action();
  for (const auto& action : tensors_) action();
}

LoadReport read_checkpoint(RankExchange& ranks,
                           const fs::path& name,
                           const CheckpointObjects& objects) {
  background_saves().wait();
  const fs::path folder = absolute_name(name);
  try {
    std::optional<AccelerateSource> source;
    std::unique_ptr<StagedCheckpoint> staged;
    std::vector<torch::nn::Module*> models = objects.models;
    agree_on(ranks, [&] {
      if (ranks.local_rank() == 0)
        finish_exchange_if_possible(real_file_system(), place_of(folder));
    });
    agree_on(ranks, [&] {
      source.emplace(folder, objects);
      staged = std::make_unique<StagedCheckpoint>(*source, objects, ranks.rank());
    });
    agree_on(ranks, [&] {
      for (const CheckpointHook& hook : objects.before_load) hook(folder);
      for (const LoadModelsHook& hook : objects.choose_models) hook(models, folder);
    });
    if (!objects.choose_models.empty())
      agree_on(ranks, [&] { staged->stage_models(*source, objects, models); });
    source.reset();
    agree_on(ranks, [&] { staged->apply_states(); });
    // A file may change just now on one rank alone: all ranks get that error, and pass over the checkpoint together.
    agree_on(ranks, [&] { staged->apply_tensors(); });
    LoadReport report = {.checkpoint = staged->info(), .notices = staged->notices()};
    report.checkpoint.folder = folder;
    return report;
  } catch (Error& error) {
    error.while_doing("loading the checkpoint " + folder.string());
    throw;
  }
}

}  // namespace accel::checkpoint

namespace accel {

LoadReport load_checkpoint(const std::filesystem::path& folder, const CheckpointObjects& objects) {
  return checkpoint::read_checkpoint(*checkpoint::current_ranks(), folder, objects);
}

CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder) {
  const checkpoint::Manifest manifest = or_throw(checkpoint::read_manifest(folder));
  return {.folder = folder,
          .version = manifest.version,
          .world_size = manifest.world_size,
          .step = manifest.step,
          .generation = manifest.generation,
          .iteration = manifest.iteration};
}

}  // namespace accel

// The process-wide state behind GradientState.
//
// Like the process state it is created on first use and never destroyed. A data loader that
// outlives a reset() may still remove itself.

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>

#include <accel/error.h>
#include <accel/state.h>

namespace accel {
namespace {

struct GradientData {
  GradientAccumulationPlugin plugin{.adjust_scheduler = false};
  bool sync_gradients = true;
  std::vector<const ActiveDataLoader*> loaders;
};

struct SharedGradient {
  std::mutex mutex;
  std::unique_ptr<GradientData> data;
};

SharedGradient& shared_gradient() {
  static auto* const state = new SharedGradient;
  return *state;
}

// Calls fn with the gradient state under the lock.
template <typename F>
auto with_gradient(std::string_view what, F&& fn) {
  const std::lock_guard lock(shared_gradient().mutex);
  if (!shared_gradient().data) {
    throw Error(
        ErrorCode::kNotInitialized,
        "GradientState has no " + std::string(what) + ": it was reset and not constructed again");
  }
  return fn(*shared_gradient().data);
}

std::string_view python_bool(bool value) {
  return value ? "True" : "False";
}

// The fields that differ from their defaults, as a Python dictionary.
std::string python_dict(const GradientAccumulationPlugin& plugin) {
  const GradientAccumulationPlugin defaults;
  std::string text;
  const auto add = [&](std::string_view key, std::string value) {
    if (!text.empty()) text += ", ";
    text.append("'").append(key).append("': ").append(value);
  };
  if (plugin.num_steps != defaults.num_steps) add("num_steps", std::to_string(plugin.num_steps));
  if (!plugin.sync_with_dataloader) add("sync_with_dataloader", "False");
  if (plugin.sync_each_batch) add("sync_each_batch", "True");
  return "{" + text + "}";
}

}  // namespace

GradientState::GradientState() {
  const std::lock_guard lock(shared_gradient().mutex);
  if (!shared_gradient().data) shared_gradient().data = std::make_unique<GradientData>();
}

GradientState::GradientState(const GradientAccumulationPlugin& plugin) : GradientState() {
  if (plugin.num_steps < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "gradient accumulation over " + std::to_string(plugin.num_steps) + " steps",
                "set num_steps to 1 or more");
  }
  with_gradient("plugin", [&](GradientData& data) { data.plugin = plugin; });
}

bool GradientState::initialized() noexcept {
  const std::lock_guard lock(shared_gradient().mutex);
  return shared_gradient().data != nullptr;
}

void GradientState::reset() {
  const std::lock_guard lock(shared_gradient().mutex);
  shared_gradient().data.reset();
}

int GradientState::num_steps() const {
  return with_gradient("num_steps", [](GradientData& data) { return data.plugin.num_steps; });
}
bool GradientState::adjust_scheduler() const {
  return with_gradient("adjust_scheduler",
                       [](GradientData& data) { return data.plugin.adjust_scheduler; });
}
bool GradientState::sync_with_dataloader() const {
  return with_gradient("sync_with_dataloader",
                       [](GradientData& data) { return data.plugin.sync_with_dataloader; });
}
bool GradientState::sync_each_batch() const {
  return with_gradient("sync_each_batch",
                       [](GradientData& data) { return data.plugin.sync_each_batch; });
}
bool GradientState::sync_gradients() const {
  return with_gradient("sync_gradients", [](GradientData& data) { return data.sync_gradients; });
}
void GradientState::set_sync_gradients(bool sync) const {
  with_gradient("sync_gradients", [&](GradientData& data) { data.sync_gradients = sync; });
}

const ActiveDataLoader* GradientState::active_dataloader() const {
  return with_gradient("active_dataloader", [](GradientData& data) {
    return data.loaders.empty() ? nullptr : data.loaders.back();
  });
}
bool GradientState::end_of_dataloader() const {
  const ActiveDataLoader* loader = active_dataloader();
  return loader != nullptr && loader->end_of_dataloader();
}
std::int64_t GradientState::remainder() const {
  const ActiveDataLoader* loader = active_dataloader();
  return loader != nullptr ? loader->remainder() : -1;
}
void GradientState::add_dataloader(const ActiveDataLoader* loader) const {
  with_gradient("active_dataloader", [&](GradientData& data) { data.loaders.push_back(loader); });
}
void GradientState::remove_dataloader(const ActiveDataLoader* loader) const {
  const std::lock_guard lock(shared_gradient().mutex);
  if (shared_gradient().data) std::erase(shared_gradient().data->loaders, loader);
}

std::string GradientState::to_string() const {
  std::string text = "Sync Gradients: ";
  text += python_bool(sync_gradients());
  text.append("\nAt end of current dataloader: ").append(python_bool(end_of_dataloader()));
  text += "\nExtra samples added: " + std::to_string(remainder());
  text += "\nGradient accumulation plugin: ";
  text += with_gradient("plugin", [](GradientData& data) { return python_dict(data.plugin); });
  return text + "\n";
}

std::ostream& operator<<(std::ostream& out, const GradientState& state) {
  return out << state.to_string();
}

}  // namespace accel

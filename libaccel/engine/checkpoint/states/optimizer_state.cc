// Optimizers to and from named tensors and JSON.
//
// Each of LibTorch's optimizers keeps a state object per parameter and an options object per group, of types of their own and
// without a common way to list their fields. tensors/optimizer_traits.h lists them, for the writer and the reader below alike, so
// that the two cannot drift apart. An optimizer of the user's own is asked for its state_dict() when it has one, else for what
// it writes into an archive (archived_optimizer.h).
//
// A parameter that an optimizer lists twice (a tied one, when prepare() has not seen the optimizer) is written once and read
// once; older checkpoints name it as often as it was listed.
//
// Loading is in two steps: first everything is read into fresh objects and compared with the
// optimizer, then, when all ranks have succeeded, the fresh objects take the place of the old ones.
// Options are overwritten in place, since schedulers may hold on to them.

#include "libaccel/engine/checkpoint/states/optimizer_state.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/state_dict.h>

#include "libaccel/engine/checkpoint/files/mapped_tensors.h"
#include "libaccel/engine/checkpoint/files/state_files.h"
#include "libaccel/engine/checkpoint/states/archived_optimizer.h"
#include "libaccel/engine/checkpoint/states/named_states.h"
#include "libaccel/engine/optim/state_places.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel::checkpoint {
namespace {

using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

constexpr std::string_view kStatefulType = "stateful";

class FieldWriter {
 public:
  FieldWriter(std::string prefix, json& scalars, safetensors::TensorMap* tensors)
      : prefix_(std::move(prefix)), scalars_(scalars), tensors_(tensors) {}

  void operator()(const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors_->emplace(prefix_ + name, tensor);
  }
  void operator()(const char* name, const std::deque<at::Tensor>& list) {
    scalars_[name] = list.size();
    for (size_t i = 0; i < list.size(); ++i)
      (*this)((name + ("." + std::to_string(i))).c_str(), list[i]);
  }
  void operator()(const char* name, const std::tuple<double, double>& pair) {
    scalars_[name] = {std::get<0>(pair), std::get<1>(pair)};
  }
  void operator()(const char* name, double value) {
    scalars_[name] = std::isfinite(value) ? json(value) : json(non_finite_text(value));
  }
  template <typename T>
  void operator()(const char* name, const std::optional<T>& value) {
    scalars_[name] = value ? json(*value) : json(nullptr);
  }
  template <typename T>
  requires std::is_integral_v<T>
  void operator()(const char* name, T value) { scalars_[name] = value; }

 private:
  std::string prefix_;
  json& scalars_;
  safetensors::TensorMap* tensors_;  // nullptr for options, which have none
};

// Takes tensors out of the map, so that what is left in the end was not expected.
class FieldReader {
 public:
  FieldReader(std::string prefix, const json& scalars, safetensors::TensorMap* tensors)
      : prefix_(std::move(prefix)), scalars_(scalars), tensors_(tensors) {}

  void operator()(const char* name, at::Tensor& tensor) {
    const auto found = tensors_->find(prefix_ + name);
    if (found == tensors_->end()) return;  // was undefined
    tensor = std::move(found->second);
    tensors_->erase(found);
  }
  void operator()(const char* name, std::deque<at::Tensor>& list) {
    const auto size = scalars_.at(name).get<size_t>();
    list.clear();
    for (size_t i = 0; i < size; ++i) {
      at::Tensor item;
      (*this)((name + ("." + std::to_string(i))).c_str(), item);
      if (!item.defined())
        throw_mismatch("the tensor " + prefix_ + name + "." + std::to_string(i) + " is missing");
      list.push_back(std::move(item));
    }
  }
  void operator()(const char* name, std::tuple<double, double>& pair) {
    pair = {scalars_.at(name).at(0).get<double>(), scalars_.at(name).at(1).get<double>()};
  }
  void operator()(const char* name, double& value) {
    const json& saved = scalars_.at(name);
    value = saved.is_number() ? saved.get<double>() : non_finite_number(saved.get<std::string>());
  }
  template <typename T>
  void operator()(const char* name, std::optional<T>& value) {
    value =
        scalars_.at(name).is_null() ? std::nullopt : std::optional<T>(scalars_.at(name).get<T>());
  }
  template <typename T>
  requires std::is_integral_v<T>
  void operator()(const char* name, T& value) { value = scalars_.at(name).get<T>(); }

 private:
  std::string prefix_;
  const json& scalars_;
  safetensors::TensorMap* tensors_;
};

template <typename Visitor>
void visit(const OptimizerFields& fields, Visitor visitor) {
  for (const OptimizerField& field : fields)
    std::visit([&](auto* value) { visitor(field.name, *value); }, field.value);
}

json parse_json(const std::string& text, const std::string& what) {
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) throw_mismatch(what + ".json is not a JSON object");
  return root;
}

// A loaded optimizer, complete and compared, waiting to take the place of the present one.
struct PendingLoad {
  Optimizer* optimizer;
  const OptimizerTraits* kind;
  StatePlaces* places;  // nullptr: states are in memory
  std::vector<std::pair<at::Tensor, std::unique_ptr<OptimizerParamState>>> states;  // by parameter
  std::vector<json> options;                                                        // one per group

  // What has no place in the optimizer yet gets memory of its own, while a lack of it changes nothing.
  void own_what_is_new() {
    if (places != nullptr) make_places();
    for_each_field([this](const StateField& field, const at::Tensor& present, at::Tensor& loaded) {
      if (!place_on_disk(places, field, loaded).defined() && !has_place_for(present, loaded))
        loaded = owned(loaded);
    });
  }

  void apply() {
    const at::NoGradGuard no_grad;
    for_each_field([this](const StateField& field, const at::Tensor& present, at::Tensor& loaded) {
      loaded = placed_state(places, field, present, loaded);
    });
    auto& state = optimizer->state();
    state.clear();
    for (auto& [parameter, loaded] : states)
      state[parameter.unsafeGetTensorImpl()] = std::move(loaded);
    for (size_t g = 0; g < options.size(); ++g) {
      visit(kind->option_fields(optimizer->param_groups()[g].options()),
            FieldReader("", options[g], nullptr));
    }
  }

 private:
  void make_places() {
    std::vector<StateField> wanted;
    for_each_field([&](const StateField& field, const at::Tensor&, const at::Tensor& loaded) {
      if (loaded.sizes() == field.parameter.sizes() &&
          loaded.scalar_type() == field.parameter.scalar_type())
        wanted.push_back(field);
    });
    places->make(wanted);
  }

  // use(field, present, loaded) for each tensor of a state; present: what the optimizer has there, or undefined.
  template <typename Use>
  void for_each_field(Use use) const {
    const auto& present = optimizer->state();
    for (const auto& [parameter, loaded] : states) {
      const auto found = present.find(parameter.unsafeGetTensorImpl());
      c10::SmallVector<at::Tensor*, 4> fields;
      if (found != present.end() && kind->has_state(*found->second))
        fields = OptimizerStateView(*kind, *found->second).tensors;
      std::size_t i = 0;
      for (at::Tensor* const tensor : OptimizerStateView(*kind, *loaded).tensors) {
        const std::size_t field = i++;
        if (!tensor->defined()) continue;
        use(StateField{parameter, field},
            field < fields.size() ? *fields[field] : at::Tensor(),
            *tensor);
      }
    }
  }
};

// The names in each group, each where it is named first.
std::vector<std::vector<std::string>> unique_names(const json& groups) {
  std::set<std::string> seen;
  std::vector<std::vector<std::string>> unique;
  for (const json& group : groups) {
    unique.emplace_back();
    for (const json& name : group.at("params")) {
      const auto text = name.get<std::string>();
      if (seen.insert(text).second) unique.back().push_back(text);
    }
  }
  return unique;
}

// Throws kCheckpointMismatch when what was saved has another type, or other groups or parameters, than the optimizer.
void verify_same_optimizer(const json& root,
                           Optimizer& optimizer,
                           const std::string& type,
                           const ParameterNames& names,
                           const std::string& what) {
  if (const auto saved = root.at("type").get<std::string>(); saved != type)
    throw_mismatch(what + " was saved from " + saved + ", but is " + type + " now");
  const auto groups = unique_names(root.at("param_groups"));
  const auto present_groups = unique_groups(optimizer);
  if (groups.size() != present_groups.size()) {
    throw_mismatch(what + " was saved with " + std::to_string(groups.size()) +
                   " parameter groups, but has " + std::to_string(present_groups.size()) + " now");
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<std::string>& saved_names = groups[g];
    const std::vector<at::Tensor>& present = present_groups[g];
    if (saved_names.size() != present.size()) {
      throw_mismatch(what + " was saved with " + std::to_string(saved_names.size()) +
                     " parameters in group " + std::to_string(g) + ", but has " +
                     std::to_string(present.size()) + " now");
    }
    for (size_t i = 0; i < saved_names.size(); ++i) {
      const std::string name = names.name_of(present[i], g, i);
      if (saved_names[i] != name) {
        throw_mismatch(what + " was saved with " + saved_names[i] + " as parameter " +
                       std::to_string(i) + " of group " + std::to_string(g) + ", but has " + name +
                       " there now");
      }
    }
  }
}

class OptimizerLoader {
 public:
  OptimizerLoader(Optimizer& optimizer,
                  const OptimizerTraits& kind,
                  const ParameterNames& names,
                  std::string what,
                  StatePlaces* places)
      : names_(names), what_(std::move(what)), groups_(unique_groups(optimizer)) {
    pending_->optimizer = &optimizer;
    pending_->kind = &kind;
    pending_->places = places;
  }

  std::function<void()> prepare(const json& root, safetensors::TensorMap tensors) {
    verify_same_optimizer(root, *pending_->optimizer, pending_->kind->name, names_, what_);
    const json& groups = root.at("param_groups");
    for (size_t g = 0; g < groups.size(); ++g) {
      read_group(g, groups[g], root.at("state"), tensors);
    }
    if (!tensors.empty())
      throw_mismatch(what_ + ".safetensors holds the unknown tensor " + tensors.begin()->first);
    pending_->own_what_is_new();
    return [pending = pending_] { pending->apply(); };
  }

 private:
  void read_group(size_t g,
                  const json& group,
                  const json& states,
                  safetensors::TensorMap& tensors) {
    for (size_t i = 0; i < groups_[g].size(); ++i) {
      const at::Tensor& parameter = groups_[g][i];
      const std::string name = names_.name_of(parameter, g, i);
      if (states.contains(name)) read_state(name, parameter, states.at(name), tensors);
    }
    // Read once into a copy: what is wrong with the options shows now, not while they are applied.
    const std::unique_ptr<OptimizerOptions> trial =
        pending_->optimizer->param_groups()[g].options().clone();
    visit(pending_->kind->option_fields(*trial), FieldReader("", group.at("options"), nullptr));
    pending_->options.push_back(group.at("options"));
  }

  void read_state(const std::string& name,
                  const at::Tensor& parameter,
                  const json& scalars,
                  safetensors::TensorMap& tensors) {
    const std::string prefix = name + ".";
    for (auto item = tensors.lower_bound(prefix);
         item != tensors.end() && item->first.starts_with(prefix);
         ++item) {
      if (has_state_by_parameter(*pending_->kind) && item->second.sizes() != parameter.sizes() &&
          is_field_of(item->first, prefix)) {
        throw_mismatch(what_ + ".safetensors holds " + item->first + " of " +
                       std::to_string(item->second.numel()) + " elements for a parameter of " +
                       std::to_string(parameter.numel()) + " or another shape");
      }
      if (!has_state_by_parameter(*pending_->kind)) check_vector(item->first, item->second);
      // One without data stands for parts that this rank has read.
      if (!item->second.is_meta()) item->second = item->second.to(parameter.device());
    }
    std::unique_ptr<OptimizerParamState> state = pending_->kind->make_state();
    visit(pending_->kind->state_fields(*state), FieldReader(prefix, scalars, &tensors));
    pending_->states.emplace_back(parameter, std::move(state));
  }

  // LBFGS: over all parameters, as often as they are listed.
  void check_vector(const std::string& name, const at::Tensor& vector) const {
    int64_t listed = 0;
    for (const at::Tensor& parameter : pending_->optimizer->param_groups()[0].params())
      listed += parameter.numel();
    if (vector.dim() != 1 || vector.numel() == listed) return;
    throw_mismatch(what_ + ".safetensors holds " + name + " of " + std::to_string(vector.numel()) +
                   " elements for parameters of " + std::to_string(listed) +
                   ": those saved were others, or a tied one was listed twice");
  }

  // "a.b.exp_avg" belongs to "a.b", not to a parameter "a" whose prefix it has too.
  static bool is_field_of(const std::string& tensor, const std::string& prefix) {
    return tensor.find('.', prefix.size()) == std::string::npos;
  }

  const ParameterNames& names_;
  std::string what_;
  std::vector<std::vector<at::Tensor>> groups_;
  std::shared_ptr<PendingLoad> pending_ = std::make_shared<PendingLoad>();
};

// What stands for an optimizer is made for this load: it may have what was saved at once.
std::function<void()> prepare_archived_load(Optimizer& optimizer,
                                            const json& root,
                                            const ParameterNames& names,
                                            SavedOptimizer saved,
                                            const std::string& what) {
  std::shared_ptr<ArchivedOptimizer> made;
  auto* archived = dynamic_cast<ArchivedOptimizer*>(&optimizer);
  if (archived == nullptr) {
    std::vector<std::vector<at::Tensor>> groups;
    for (const auto& group : optimizer.param_groups()) groups.push_back(group.params());
    made = std::make_shared<ArchivedOptimizer>(optimizer, std::move(groups));
    archived = made.get();
  }
  verify_same_optimizer(root, *archived, archived->type(), names, what);
  read_archived(*archived, names, std::move(saved), what);
  if (made == nullptr) return [] {};
  return [&optimizer, made] { load_archived(optimizer, *made); };
}

SavedOptimizer save_stateful(const Stateful& stateful) {
  StateDict state = stateful.state_dict();
  const json root = {{"type", kStatefulType}, {"state_dict", json::parse(encode_state(state))}};
  return {std::move(state.tensors), root.dump(2) + "\n"};
}

std::function<void()> prepare_stateful_load(Stateful& stateful,
                                            const json& root,
                                            SavedOptimizer saved) {
  auto state = std::make_shared<StateDict>(decode_state(root.at("state_dict").dump()).state);
  state->tensors = std::move(saved.tensors);
  return [&stateful, state] { stateful.load_state_dict(*state); };
}

}  // namespace

ParameterNames::ParameterNames(const std::vector<torch::nn::Module*>& models) {
  for (size_t m = 0; m < models.size(); ++m) {
    const std::string prefix = m == 0 ? "" : "model_" + std::to_string(m) + ":";
    for (const auto& item : models[m]->named_parameters()) {
      names_.try_emplace(item.value().unsafeGetTensorImpl(), prefix + item.key());
      parameters_.try_emplace(prefix + item.key(), item.value());
    }
  }
}

const at::Tensor* ParameterNames::parameter_of(const std::string& field) const {
  const auto found = parameters_.find(field.substr(0, field.rfind('.')));
  return found == parameters_.end() ? nullptr : &found->second;
}

std::string ParameterNames::name_of(const at::Tensor& parameter, size_t group, size_t index) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  if (found != names_.end()) return found->second;
  return "group_" + std::to_string(group) + ":" + std::to_string(index);
}

SavedOptimizer save_optimizer(Optimizer& optimizer, const ParameterNames& names) {
  if (const auto* stateful = dynamic_cast<const Stateful*>(&optimizer))
    return save_stateful(*stateful);
  if (auto* archived = dynamic_cast<ArchivedOptimizer*>(&optimizer))
    return save_archived(*archived, names);
  const OptimizerTraits* const known = traits_of(optimizer);
  if (known == nullptr) return save_archived(*archive_of(optimizer), names);
  const auto write_state = [known](OptimizerParamState& state,
                                   const std::string& name,
                                   safetensors::TensorMap& tensors) {
    json scalars = json::object();
    visit(known->state_fields(state), FieldWriter(name + ".", scalars, &tensors));
    return scalars;
  };
  const auto write_options = [&](std::size_t g) {
    json options = json::object();
    visit(known->option_fields(optimizer.param_groups()[g].options()),
          FieldWriter("", options, nullptr));
    return options;
  };
  return save_by_names(optimizer, names, {known->name, write_state, write_options});
}

std::vector<at::Tensor> state_tensors(Optimizer& optimizer, const at::Tensor& parameter) {
  const OptimizerTraits* const kind = traits_of(optimizer);
  const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (kind == nullptr || !has_state_by_parameter(*kind) || state == optimizer.state().end())
    return {};
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* tensor : OptimizerStateView(*kind, *state->second).tensors) {
    if (tensor->defined() && tensor->sizes() == parameter.sizes()) tensors.push_back(*tensor);
  }
  return tensors;
}

std::uint64_t expected_state_bytes(const Optimizer& optimizer) {
  std::uint64_t bytes = 0;
  const auto groups = unique_groups(optimizer);
  for (size_t g = 0; g < groups.size(); ++g) {
    const OptimizerOptions& options = optimizer.param_groups()[g].options();
    const OptimizerTraits* const traits = traits_of(options);
    if (traits == nullptr) continue;
    const std::vector<bool> is_made = traits->makes_tensors(options);
    const auto num_tensors =
        static_cast<std::uint64_t>(std::count(is_made.begin(), is_made.end(), true));
    for (const at::Tensor& parameter : groups[g]) {
      const bool has_state = optimizer.state().count(parameter.unsafeGetTensorImpl()) > 0;
      if (has_state || !parameter.requires_grad()) continue;
      bytes += num_tensors * static_cast<std::uint64_t>(parameter.numel()) *
               static_cast<std::uint64_t>(parameter.element_size());
    }
  }
  return bytes;
}

bool copies_loaded_states(const Optimizer& optimizer) {
  const OptimizerTraits* const kind = traits_of(optimizer);
  return dynamic_cast<const Stateful*>(&optimizer) == nullptr && kind != nullptr &&
         has_state_by_parameter(*kind);
}

bool may_have_divided_states(const Optimizer& optimizer) {
  return dynamic_cast<const ArchivedOptimizer*>(&optimizer) != nullptr ||
         traits_of(optimizer) != nullptr;
}

std::function<void()> prepare_optimizer_load(Optimizer& optimizer,
                                             const ParameterNames& names,
                                             SavedOptimizer saved,
                                             const std::string& what,
                                             StatePlaces* places) {
  const json root = parse_json(saved.json, what);
  try {
    if (auto* stateful = dynamic_cast<Stateful*>(&optimizer)) {
      return prepare_stateful_load(*stateful, root, std::move(saved));
    }
    const OptimizerTraits* const kind = traits_of(optimizer);
    if (kind == nullptr)
      return prepare_archived_load(optimizer, root, names, std::move(saved), what);
    return OptimizerLoader(optimizer, *kind, names, what, places)
        .prepare(root, std::move(saved.tensors));
  } catch (const json::exception& error) {
    throw_mismatch(what + ".json lacks a field or has one of another type: " + error.what());
  }
}

}  // namespace accel::checkpoint

// Which parameters a rank has in full precision while a checkpoint is made or read: what the model's owners, hooks and registered
// objects look at meanwhile.

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/seen_parameters.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/sharding/full_precision.h"
#include "libaccel/engine/sharding/sharded_model.h"

namespace accel {
namespace {

using Models = std::vector<std::shared_ptr<detail::ModelRuntime>>;

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "which is undefined";
  std::ostringstream text;
  text << "of shape " << tensor.sizes();
  return text.str();
}

// A view, a detached tensor or a copy keeps the few bits that it was made of, whatever the parameter has meanwhile.
void refuse_unknown(const std::vector<at::Tensor>& seen, const Models& models) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& model : models) {
    for (const at::Tensor& parameter : model->module()->parameters())
      known.insert(parameter.unsafeGetTensorImpl());
    for (const at::Tensor& buffer : model->module()->buffers())
      known.insert(buffer.unsafeGetTensorImpl());
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].defined() && known.contains(seen[i].unsafeGetTensorImpl())) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        "parameters_seen() of a registered object names tensor " + std::to_string(i) + ", " +
            described(seen[i]) +
            ": it is no parameter and no buffer of a prepared model, and would not get full "
            "precision",
        "name the tensors of model->parameters(), not views, copies or detached ones of "
        "them; leave out what is of no prepared model");
  }
}

}  // namespace

std::optional<std::vector<at::Tensor>> Accelerator::Impl::masters_to_show(Callers callers) const {
  const auto divided_models = sharded_models();
  const bool has_masters = std::any_of(
      divided_models.begin(), divided_models.end(), [](const auto& m) { return m->has_masters(); });
  if (!has_masters) return std::nullopt;
  std::vector<at::Tensor> seen;
  const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    seen = parameters_seen_by(callers);
    return seen.empty() ? "" : "yes";
  }));
  if (std::find(said.begin(), said.end(), "yes") == said.end()) return std::nullopt;
  return seen;
}

std::vector<at::Tensor> Accelerator::Impl::divided_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& model : sharded_models()) {
    for (const NamedParameter& parameter : model->parameters())
      parameters.push_back(parameter.tensor);
  }
  return parameters;
}

// Who does not say what it looks at may look at all.
std::vector<at::Tensor> Accelerator::Impl::parameters_seen_by(Callers callers) const {
  if (callers == Callers::kHooksAndObjects) return divided_parameters();
  std::vector<at::Tensor> seen;
  if (callers == Callers::kNone) return seen;
  for (const Stateful* const object : custom_objects) {
    const auto* const says = dynamic_cast<const SeesParameters*>(object);
    if (says == nullptr) return divided_parameters();
    const std::vector<at::Tensor> parameters = says->parameters_seen();
    refuse_unknown(parameters, models);
    seen.insert(seen.end(), parameters.begin(), parameters.end());
  }
  return seen;
}

// Hooks run on all ranks, state_dict() of registered objects on those that write it.
Accelerator::Impl::Exposed Accelerator::Impl::parameters_to_save(SaveTo to) const {
  const bool writes_objects = to == SaveTo::kMemory || project.save_on_each_node
                                  ? state.is_local_main_process()
                                  : state.is_main_process();
  const Callers callers = !save_hooks->by_id.empty() ? Callers::kHooksAndObjects
                          : writes_objects           ? Callers::kObjects
                                                     : Callers::kNone;
  const bool is_by_parts = to == SaveTo::kMemory || !writes_wholes();
  if (auto seen = masters_to_show(callers)) {
    const bool wants_all = !is_by_parts && wholes_to_save(to) == sharding::Wholes::kKept;
    return {sharding::Exposure::kAsked, wants_all ? divided_parameters() : *std::move(seen)};
  }
  return {is_by_parts ? sharding::Exposure::kUndivided : exposure_of(wholes_to_save(to)), {}};
}

// Hooks and load_state_dict() of registered objects, which run on all ranks, may write to the model.
Accelerator::Impl::Exposed Accelerator::Impl::parameters_to_load() const {
  auto seen =
      masters_to_show(load_hooks->by_id.empty() ? Callers::kObjects : Callers::kHooksAndObjects);
  if (seen) return {sharding::Exposure::kAsked, *std::move(seen)};
  return {};
}

}  // namespace accel

// The state of models and optimizers as dictionaries.
//
// Three forms of the same: whole tensors on the ranks that want them, the part of each tensor that this rank has, and this
// rank's shards as they lie in memory. The second needs no communication for a model; of an optimizer the ranks agree on its
// numbers. The third is the second, laid out by units.

#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/state_view.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/sharding/full_precision.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/engine/sharding/whole_optimizer.h"
#include "libaccel/tensors/divided_tensors.h"

namespace accel {
namespace {

using checkpoint::NamedTensor;
using sharding::ShardedModel;
using sharding::ShardPiece;
using sharding::Wholes;

StateTensor whole_of(at::Tensor values) {
  StateTensor tensor{.shape = values.sizes().vec(), .strides = values.strides().vec()};
  tensor.values = std::move(values);
  return tensor;
}

StateTensor part_of(const at::Tensor& parameter, std::int64_t begin, at::Tensor values) {
  return {.values = std::move(values),
          .shape = parameter.sizes().vec(),
          .strides = parameter.strides().vec(),
          .begin = begin,
          .is_whole = false};
}

// This rank's shard of a unit, of the length that all have.
StateTensor shard_of(const ShardedModel& model, at::Tensor values, std::int64_t shard_numel) {
  const std::int64_t all = model.group().size() * shard_numel;
  return {.values = std::move(values),
          .shape = {all},
          .strides = {1},
          .begin = model.group().rank() * shard_numel,
          .is_whole = false};
}

bool is_divided(const ShardedModel& model, const at::Tensor& tensor) {
  return tensor.numel() > 0 && model.owns(tensor);
}

at::Tensor placed(const at::Tensor& values, const StateDictConfig& config) {
  return config.offload_to_cpu ? values.cpu() : values;
}

// Copies, once of a tensor that has several names.
void add_wholes(const torch::nn::Module& module, const StateDictConfig& config, StateView& view) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> copies;
  for (const NamedTensor& item : checkpoint::state_of(module)) {
    at::Tensor& copy = copies[item.tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) copy = placed(item.tensor.detach().clone(), config);
    view.tensors.emplace(item.name, whole_of(copy));
  }
}

void add_parts(const torch::nn::Module& module, const ShardedModel& model, StateView& view) {
  for (const NamedTensor& item : checkpoint::state_of(module)) {
    if (!is_divided(model, item.tensor)) {
      view.tensors.emplace(item.name, whole_of(model.full_values_of(item.tensor)));
    } else if (const ShardPiece* piece = model.piece_of(item.tensor)) {
      view.tensors.emplace(item.name,
                           part_of(item.tensor,
                                   piece->place.parameter_offset,
                                   sharding::in_memory_order(piece->tensor)));
    }
  }
}

void add_shards(const torch::nn::Module& module, const ShardedModel& model, StateView& view) {
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    const std::int64_t numel = model.units()[unit].shard_numel;
    view.tensors.emplace("unit_" + std::to_string(unit), shard_of(model, model.shard(unit), numel));
  }
  for (const NamedTensor& item : checkpoint::state_of(module)) {
    if (!is_divided(model, item.tensor))
      view.tensors.emplace(item.name, whole_of(model.full_values_of(item.tensor)));
  }
}

// The views of one sharded optimizer.
class OptimizerView {
 public:
  OptimizerView(torch::optim::Optimizer& optimizer,
                const sharding::ShardedOptimizer& sharded,
                const std::vector<torch::nn::Module*>& modules)
      : optimizer_(optimizer), sharded_(sharded), modules_(modules), names_(modules) {}

  StateView whole(Wholes wholes, const StateDictConfig& config) {
    checkpoint::SavedOptimizer saved = describe(wholes);
    StateView view{.type = StateDictType::kFull};
    if (wholes == Wholes::kDropped) return view;
    for (auto& [name, tensor] : saved.tensors)
      view.tensors.emplace(name, whole_of(placed(tensor, config)));
    view.json = std::move(saved.json);
    return view;
  }

  StateView parts() {
    for (const auto& [model, units] : sharded_.models())
      sharding::divide_parameters(*model, divided_);
    checkpoint::SavedOptimizer saved = describe(Wholes::kKept);
    StateView view{.type = StateDictType::kSharded, .json = std::move(saved.json)};
    for (auto& [name, tensor] : saved.tensors) {
      const at::Tensor* parameter = names_.parameter_of(name);
      const ShardedModel* model = parameter == nullptr ? nullptr : sharded_.model_of(*parameter);
      if (model == nullptr || !is_divided(*model, *parameter)) {
        view.tensors.emplace(name, whole_of(tensor));
      } else if (const ShardPiece* piece = model->piece_of(*parameter)) {
        const auto* parts = divided_.find(tensor);
        if (tensor.sizes() != parameter->sizes()) {
          // Of an optimizer of the user's own: its owner has the whole of it.
          view.tensors.emplace(
              name, whole_of(parts == nullptr ? tensor : parts->at(0).values.view(tensor.sizes())));
          continue;
        }
        // What is no range of a file was gathered.
        at::Tensor values = parts == nullptr ? sharding::part_of(tensor, *parameter, piece->place)
                                             : parts->at(0).values;
        view.tensors.emplace(name,
                             part_of(*parameter, piece->place.parameter_offset, std::move(values)));
      }
    }
    return view;
  }

  // The parts, at their places in the shards.
  StateView shards() {
    StateView parts_of_tensors = parts();
    StateView view{.type = StateDictType::kLocal, .json = std::move(parts_of_tensors.json)};
    for (auto& [name, part] : parts_of_tensors.tensors) {
      if (part.is_whole) {
        view.tensors.emplace(name, std::move(part));
        continue;
      }
      const at::Tensor& parameter = *names_.parameter_of(name);
      const ShardedModel& model = *sharded_.model_of(parameter);
      const std::size_t unit = model.unit_of(parameter);
      const std::int64_t numel = model.units()[unit].shard_numel;
      const std::string field = name.substr(name.rfind('.'));
      StateTensor& shard = view.tensors[prefix_of(model) + "unit_" + std::to_string(unit) + field];
      if (!shard.values.defined())
        shard = shard_of(model, at::zeros({numel}, part.values.options()), numel);
      const Piece& place = model.piece_of(parameter)->place;
      shard.values.narrow(0, place.unit_offset - shard.begin, place.numel).copy_(part.values);
    }
    return view;
  }

 private:
  checkpoint::SavedOptimizer describe(Wholes wholes) {
    whole_ = sharding::whole_optimizer(optimizer_, sharded_);
    sharding::describe_states(optimizer_, sharded_, *whole_, divided_, wholes);
    return checkpoint::save_optimizer(*whole_, names_);
  }

  // As names of parameters have it: none for the first model.
  [[nodiscard]] std::string prefix_of(const ShardedModel& model) const {
    for (std::size_t m = 1; m < modules_.size(); ++m) {
      for (const at::Tensor& parameter : modules_[m]->parameters())
        if (model.owns(parameter)) return "model_" + std::to_string(m) + ":";
    }
    return "";
  }

  torch::optim::Optimizer& optimizer_;
  const sharding::ShardedOptimizer& sharded_;
  const std::vector<torch::nn::Module*>& modules_;
  checkpoint::ParameterNames names_;
  checkpoint::DividedTensors divided_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  // whose states the views refer to
};

}  // namespace

sharding::Wholes Accelerator::Impl::wholes_to_view(const StateDictConfig& config) const {
  return fsdp && config.rank0_only && !state.is_main_process() ? Wholes::kDropped : Wholes::kKept;
}

StateView Accelerator::model_state(const detail::ModelRuntime& runtime, StateDictType type) const {
  const at::NoGradGuard no_grad;
  const StateDictConfig config = impl_->fsdp ? impl_->fsdp->state_dict : StateDictConfig{};
  const Wholes wholes = impl_->wholes_to_view(config);
  const torch::nn::Module& module = *runtime.module();
  const auto model = std::dynamic_pointer_cast<ShardedModel>(runtime.sync());
  StateView view{.type = type};
  if (model == nullptr) {
    if (type == StateDictType::kFull && impl_->fsdp) {
      if (wholes == Wholes::kKept) add_wholes(module, config, view);
      return view;
    }
    for (const NamedTensor& item : checkpoint::state_of(module))
      view.tensors.emplace(item.name, whole_of(item.tensor.detach()));
    return view;
  }
  switch (type) {
    case StateDictType::kFull: {
      const FullPrecision full_precision({model}, exposure_of(wholes));
      if (wholes == Wholes::kKept) add_wholes(module, config, view);
      wait_for_everyone();  // nobody takes a step while another rank still reads
      break;
    }
    case StateDictType::kSharded:
      model->take_written();
      add_parts(module, *model, view);
      break;
    case StateDictType::kLocal:
      model->take_written();
      add_shards(module, *model, view);
      break;
  }
  return view;
}

StateView Accelerator::get_optimizer_state_dict(const AcceleratedOptimizer& optimizer,
                                                StateDictType type) const {
  const at::NoGradGuard no_grad;
  const StateDictConfig config = impl_->fsdp ? impl_->fsdp->optim_state_dict : StateDictConfig{};
  const Wholes wholes = impl_->wholes_to_view(config);
  std::vector<torch::nn::Module*> modules;
  for (const auto& model : impl_->models) modules.push_back(model->module().get());
  const auto* sharded = sharding::sharded_of(Impl::gate_of(optimizer));
  if (sharded != nullptr) {
    OptimizerView view(optimizer.optimizer(), *sharded, modules);
    if (type == StateDictType::kFull) return view.whole(wholes, config);
    return type == StateDictType::kSharded ? view.parts() : view.shards();
  }
  StateView view{.type = type};
  const bool is_copy = type == StateDictType::kFull && impl_->fsdp;
  if (is_copy && wholes == Wholes::kDropped) return view;
  checkpoint::SavedOptimizer saved =
      checkpoint::save_optimizer(optimizer.optimizer(), checkpoint::ParameterNames(modules));
  for (auto& [name, tensor] : saved.tensors)
    view.tensors.emplace(name, whole_of(is_copy ? placed(tensor.clone(), config) : tensor));
  view.json = std::move(saved.json);
  return view;
}

StateDictType Accelerator::state_dict_type() const noexcept {
  return impl_->fsdp ? impl_->fsdp->state_dict_type : StateDictType::kFull;
}

void Accelerator::set_state_dict_type(StateDictType type) {
  if (impl_->fsdp) {
    sharding::check_state_dict_type(type, impl_->fsdp->version);
    impl_->fsdp->state_dict_type = type;
  } else if (type != StateDictType::kFull) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(to_string(type)) + " is for models that are divided",
                "set AcceleratorOptions.fsdp_plugin, or ACCELERATE_USE_FSDP");
  }
}

void Accelerator::set_state_dict_type(std::string_view name) {
  set_state_dict_type(parse<StateDictType>(name));
}

}  // namespace accel

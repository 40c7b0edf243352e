// Dividing a model.
//
// Parameters keep their TensorImpl, so the module, the user's references and autograd's accumulators stay valid; only
// their storage changes, to a view of their unit with the strides that they had. A gradient that arrives is laid out the
// same way, so that element i of a unit is the gradient of element i.
//
// The order of a step, on each rank:
//
//   forward, backward        units are reduced as they fill up (gradient_shards.h)
//   after_backward()         pieces get their gradients; what was accumulated before is added to. The end of a backward of the
//                            program's own calls it, too
//   before_write()           every rank is through with its backward: nobody reads parameters
//   optimizer                writes this rank's pieces
//   publish()                every rank sees every piece

#include "libaccel/engine/sharding/sharded_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/logging.h>
#include <accel/memory_use.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/gradients/tree_exchange.h"
#include "libaccel/engine/homes/parameter_memory.h"
#include "libaccel/engine/optim/state_file.h"
#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/model_comparison.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/sharding/device_limits.h"
#include "libaccel/engine/sharding/undivided_state.h"
#include "libaccel/engine/sharding/wrap_policy.h"
#include "libaccel/interception/parameter_operators.h"
#include "libaccel/interception/state_staging.h"

namespace accel::sharding {
namespace {

// As DDP's buckets: large enough for the cost of a call to vanish, small enough for two to be little.
constexpr std::int64_t kMaxUnitBytes = std::int64_t{25} << 20;

constexpr const char* kPreparing = "sending the model of rank 0 to all ranks";

void refuse_sparse(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.expects_sparse_gradient) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "the gradient of " + parameter.name + " is sparse, which cannot be sharded",
        "construct the embedding with sparse(false), or name its module in ignored_modules");
  }
}

// Parameters without memory get it where those are that have some.
c10::Device present_device(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters)
    if (!parameter.tensor.is_meta()) return parameter.tensor.device();
  return c10::kCPU;
}

void refuse_several_devices(const std::vector<NamedParameter>& parameters, c10::Device device) {
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.is_meta() || parameter.tensor.device() == device) continue;
    throw Error(ErrorCode::kUnsupported,
                "the parameter " + parameter.name + " is on " + parameter.tensor.device().str() +
                    ", and another one on " + device.str() +
                    ": a model that is divided is on one device",
                "move the module to one device, or leave device_placement out");
  }
}

// Of a model that was divided over devices before: one rank alone cannot ask for what its parameters were.
void refuse_divided_on_devices(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    const bool is_divided =
        interception::owner_of(*parameter.tensor.unsafeGetTensorImpl()) != nullptr;
    if (parameter.tensor.is_cpu() || !is_divided) continue;
    throw Error(ErrorCode::kUnsupported,
                "the parameter " + parameter.name +
                    " belongs to a model that was divided over GPUs before, by FULL_SHARD",
                "make the model anew, and load its weights into it");
  }
}

void refuse_layouts(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.is_non_overlapping_and_dense()) continue;
    throw Error(ErrorCode::kUnsupported,
                "the parameter " + parameter.name + " is not dense, so it cannot be sharded",
                "make it contiguous() before it is registered");
  }
}

std::int64_t largest_bytes(const std::vector<NamedParameter>& parameters) {
  std::size_t bytes = 0;
  for (const NamedParameter& parameter : parameters)
    bytes = std::max(bytes, parameter.tensor.nbytes());
  return static_cast<std::int64_t>(bytes);
}

// A tensor of the dtype, sizes and strides of `like`, in memory that others had before: one block for all is what keeps
// the peak at one of them, whenever the allocator gives freed ones back.
at::Tensor laid_out_in(const at::Tensor& room, const at::Tensor& like) {
  return room.narrow(0, 0, static_cast<std::int64_t>(like.nbytes()))
      .view(like.scalar_type())
      .as_strided(like.sizes(), like.strides());
}

void warn_of_old_gradients() {
  static const Logger logger = get_logger("accel.sharding");
  logger.warning_once(
      "gradients of before the last step are added to: zero_grad() of the prepared optimizer, or "
      "of the module, clears them");
}

std::shared_ptr<pager::WritePermit> make_piece_permit() {
  return std::make_shared<pager::WritePermit>(
      pager::WritePermit::First::kGiven,
      ", of which this rank has a part to step, while other ranks may read it: step() of the "
      "optimizer itself waits for nobody",
      "write optimizer.step(), with what prepare() returned");
}

// What an optimizer writes by addresses is seen by nothing else.
void warn_of_no_step() {
  static const Logger logger = get_logger("accel.sharding");
  logger.warning_once(
      "gradients of a divided model were cleared, and no prepared optimizer has stepped: step() "
      "of the optimizer itself, as optimizer->step(), writes while other ranks read; write "
      "optimizer.step(), with what prepare() returned");
}

}  // namespace

ShardedModel::ShardedModel(const torch::nn::Module& module,
                           std::shared_ptr<Mesh> mesh,
                           const FsdpSettings& settings,
                           const PrecisionRecipe& recipe,
                           std::optional<c10::Device> device)
    : mesh_(std::move(mesh)),
      group_(mesh_->group(MeshAxis::kShard)),
      all_(mesh_->group(MeshAxis::kData)),
      module_(module.weak_from_this()),
      recipe_(recipe),
      cut_(settings.shard_by_tensor ? ShardCut::kByTensor : ShardCut::kEven),
      piece_permit_(make_piece_permit()) {
  verify_same_models(
      module, settings.sync_module_states ? Buffers::kCompared : Buffers::kOwn, *all_);
  std::vector<NamedParameter> all = trainable_parameters(module);
  const auto ignored = ignored_parameters(module, settings);
  const auto groups = wrap_groups(module, settings);
  for (NamedParameter& parameter : all) {
    trained_.insert(parameter.tensor.unsafeGetTensorImpl());
    if (ignored.contains(parameter.tensor.unsafeGetTensorImpl())) {
      ignored_.push_back(parameter.tensor);
    } else {
      parameters_.push_back(std::move(parameter));
    }
  }
  averaged_.resize(ignored_.size());
  device_ = device.value_or(present_device(parameters_));
  if (device_.is_cpu()) device_ = c10::kCPU;  // without a number, as tensors have it
  const auto check = [&] {
    claim_.emplace(parameters_);
    refuse_sparse(parameters_);
    refuse_overlaps(parameters_, module);
    refuse_divided_on_devices(parameters_);
    refuse_layouts(parameters_);
    if (!device) refuse_several_devices(parameters_, device_);
    refuse_on_device(device_, settings, *mesh_);
    refuse_writing_forwards(parameters_, module);
  };
  jointly(check, all_.get(), "asking whether every rank can divide its model");
  warn_of_views(parameters_, module);
  const at::NoGradGuard no_grad;
  std::vector<PlannedParameter> planned;
  for (const NamedParameter& parameter : parameters_) {
    index_.emplace(parameter.tensor.unsafeGetTensorImpl(), planned.size());
    planned.push_back({.name = parameter.name,
                       .numel = parameter.tensor.numel(),
                       .dtype = recipe_.optimizer_type(parameter.tensor.scalar_type()),
                       .group = groups.at(parameter.tensor.unsafeGetTensorImpl())});
  }
  place_others(module, settings.sync_module_states);
  // So that every rank gets tensors of each unit.
  const std::int64_t unit_bytes =
      is_cut_by_tensor() ? kMaxUnitBytes * group_->size() : kMaxUnitBytes;
  units_ = plan_units(planned, group_->size(), unit_bytes, cut_);
  find_home(settings);
  keep_masters(settings);
  cut_pieces();
  move_into_units(settings.sync_module_states);
  piece_permit_->withdraw();
  round_others(module, ignored);
  if (settings.keeps_whole_gradients) return;
  static int num_models = 0;  // of this process; ranks prepare the same ones in the same order
  gradients_ =
      std::make_unique<GradientShards>(parameters_, units_in(recipe_.reduce), *mesh_, ++num_models);
  if (home_->is_on_disk() && !settings.optimizer_folder.empty())
    keep_gradients_in(settings.optimizer_folder);
  exchange_.emplace(parameters_,
                    *gradients_,
                    all_->rank(),
                    GradientExchange::Events{.at_own_end = [this] { after_backward(); }});
  divided_.emplace(parameters_, [this](std::size_t parameter) {
    if (piece_index_[parameter] >= 0)
      pieces_[static_cast<std::size_t>(piece_index_[parameter])].tensor.mutable_grad().reset();
  });
}

// A shard that the program still has, because gradients were not cleared, stays as it is: what comes is in memory, and added to it.
void ShardedModel::keep_gradients_in(const std::string& folder) {
  std::vector<at::Tensor> places;  // by unit
  const auto make = [&] {
    std::vector<at::Tensor> like;
    for (const Unit& unit : units_)
      like.push_back(
          at::empty({unit.shard_numel}, at::TensorOptions(unit.dtype).device(at::kMeta)));
    places = StateFile(folder, {.name = "gradients"}).make(like);
  };
  jointly(make, all_.get(), "asking whether every rank can keep its gradients");
  gradients_->set_keep([places = std::move(places)](std::size_t unit, const at::Tensor& shard) {
    const at::Tensor& place = places[unit];
    if (place.storage().use_count() > 1) return shard;
    copy_to_disk(place, shard);
    return place.detach();
  });
}

std::vector<Unit> ShardedModel::units_in(std::optional<at::ScalarType> dtype) const {
  std::vector<Unit> units = units_;
  for (Unit& unit : units) {
    if (dtype && at::isFloatingType(unit.dtype)) unit.dtype = *dtype;
  }
  return units;
}

// Frozen parameters and buffers.
void ShardedModel::round_others(const torch::nn::Module& module,
                                const std::unordered_set<const c10::TensorImpl*>& ignored) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (at::Tensor& parameter : module.parameters()) {
    if (!recipe_.parameter || parameter.requires_grad() ||
        !at::isFloatingType(parameter.scalar_type()))
      continue;
    const auto* key = parameter.unsafeGetTensorImpl();
    if (ignored.contains(key) || !seen.insert(key).second) continue;
    masters_->round_whole(parameter, *recipe_.parameter);
  }
  for (at::Tensor& buffer : module.buffers()) {
    if (!recipe_.buffer || !buffer.defined()) continue;
    if (!at::isFloatingType(buffer.scalar_type())) continue;
    if (!seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
    if (masters_ && !masters_->are_the_homes()) {
      masters_->round_buffer(buffer, *recipe_.buffer);
    } else {
      buffer.set_data(buffer.to(*recipe_.buffer));
    }
  }
}

void ShardedModel::place_others(const torch::nn::Module& module, bool takes_from_rank_0) {
  const auto place = [&](at::Tensor& tensor) {
    if (tensor.is_meta())
      construction::give_memory(tensor, construction::memory_like(tensor, device_));
    if (tensor.device() != device_) tensor.set_data(tensor.to(device_));
    if (takes_from_rank_0) take_from_rank_0(tensor, *all_);
  };
  for (at::Tensor& parameter : module.parameters())
    if (!owns(parameter)) place(parameter);
  for (at::Tensor& buffer : module.buffers())
    if (buffer.defined()) place(buffer);
}

void ShardedModel::find_home(const FsdpSettings& settings) {
  const std::vector<Unit> units = units_in(recipe_.parameter);
  std::vector<std::vector<pager::GuardLabel>> labels(units.size());
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (const Slot& slot : units[unit].slots) {
      labels[unit].push_back({units[unit].bytes_of(slot.offset),
                              units[unit].bytes_of(slot.numel),
                              parameters_[slot.parameter].name});
    }
  }
  // Of several copies one may have its ranks on one node, and another one not.
  const auto make = [&] {
    home_ = make_home(units,
                      std::move(labels),
                      group_,
                      settings,
                      recipe_.parameter ? Masters::kBeside : Masters::kNone,
                      device_);
  };
  jointly(make, all_.get(), "asking whether every rank can keep its parameters");
}

// Where one rank alone cannot see whole parameters its checkpoints go by masters, which then are the home's shards.
void ShardedModel::keep_masters(const FsdpSettings& settings) {
  if (recipe_.parameter) {
    const auto make = [&] { masters_.emplace(units_, group_, device_, settings.optimizer_folder); };
    jointly(make, all_.get(), "asking whether every rank can keep its masters");
  } else if (home_->is_collective()) {
    masters_.emplace(units_, group_, *home_);
  }
}

// Each rank brings its own shards, with rank 0's values or its own; then the parameters of the module become views of the
// whole. Who receives does not need the parameters' own memory, which may be missing, or be that of another model that was
// prepared before: it holds one parameter at a time.
void ShardedModel::move_into_units(bool takes_from_rank_0) {
  const bool receives = takes_from_rank_0 && all_->rank() != 0;
  const at::Tensor room = receives ? at::empty({largest_bytes(parameters_)},
                                               at::TensorOptions(at::kByte).device(device_))
                                   : at::Tensor();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    at::Tensor values = receives ? laid_out_in(room, parameter)
                                 : pager::with_memory(parameter.detach()).to(device_);
    if (takes_from_rank_0) all_->broadcast_(values, 0, kPreparing);
    if (values.numel() == 0) {  // it is in no unit
      construction::give_memory(parameter, construction::memory_like(parameter, device_));
    }
    if (piece_index_[i] < 0) continue;
    const ShardPiece& piece = pieces_[static_cast<std::size_t>(piece_index_[i])];
    const at::Tensor in_memory_order =
        values.as_strided({values.numel()}, {1}, values.storage_offset());
    piece.tensor.detach().copy_(shaped(
        in_memory_order.narrow(0, piece.place.parameter_offset, piece.place.numel), piece.place));
  }
  for (const ShardPiece& piece : pieces_) {
    // Whatever the ranks had before: replicas stay equal only when they begin so.
    at::Tensor values = piece.tensor.detach();
    if (mesh_->size(MeshAxis::kReplicate) > 1)
      mesh_->group(MeshAxis::kReplicate)->broadcast_(values, 0, kPreparing);
  }
  std::vector<std::size_t> all(units_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (masters_) masters_->write_to(*home_, all);
  home_->publish(all);
  claim_->set_divided();
  home_->take_in(parameters_);
  places_.assign(parameters_.size(), nullptr);
  for (const Unit& unit : units_) {
    for (const Slot& slot : unit.slots)
      places_[slot.parameter] = parameters_[slot.parameter].tensor.storage().unsafeGetStorageImpl();
  }
}

void ShardedModel::cut_pieces() {
  piece_index_.assign(parameters_.size(), -1);
  unit_index_.resize(parameters_.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const Slot& slot : units_[unit].slots) unit_index_[slot.parameter] = unit;
    const std::vector<Piece> places = pieces_of(units_[unit], group_->rank());
    if (places.empty()) continue;
    const std::int64_t own = group_->rank() * units_[unit].shard_numel;
    const at::Tensor whole = guarded_shard(unit, places);
    for (const Piece& place : places) {
      at::Tensor tensor =
          shaped(whole.narrow(0, place.unit_offset - own, place.numel).detach(), place);
      tensor.requires_grad_(true);
      piece_index_[place.parameter] = std::ssize(pieces_);
      piece_tensors_.emplace(tensor.unsafeGetTensorImpl(), pieces_.size());
      claim_->add_piece(tensor);
      pieces_.push_back({unit, place, std::move(tensor)});
    }
  }
}

at::Tensor ShardedModel::guarded_shard(std::size_t unit, const std::vector<Piece>& places) const {
  const at::Tensor values = shard(unit);
  const std::int64_t own = group_->rank() * units_[unit].shard_numel;
  std::vector<pager::GuardLabel> labels;
  for (const Piece& place : places) {
    labels.push_back({static_cast<std::size_t>(values.storage_offset() + place.unit_offset - own) *
                          values.element_size(),
                      static_cast<std::size_t>(place.numel) * values.element_size(),
                      parameters_[place.parameter].name});
  }
  return pager::guarded(values, std::move(labels), piece_permit_);
}

at::Tensor ShardedModel::shaped(const at::Tensor& range, const Piece& place) const {
  if (!is_cut_by_tensor()) return range;
  const at::Tensor& parameter = parameters_[place.parameter].tensor;
  return range.as_strided(parameter.sizes(), parameter.strides(), range.storage_offset());
}

at::Tensor ShardedModel::shard(std::size_t unit) const {
  return masters_ ? masters_->shard(unit) : home_->own_shard(unit);
}

at::Tensor ShardedModel::full_values_of(const at::Tensor& parameter) const {
  at::Tensor full = masters_ ? masters_->full_values_of(parameter) : at::Tensor();
  return full.defined() ? full : parameter.detach();
}

// Of the homes that learn in which order units are used, one forward after the other is a step where none is followed by a backward.
void ShardedModel::before_forward() {
  if (at::GradMode::is_enabled()) {
    is_training_ = true;
  } else if (!is_training_) {
    home_->begin_evaluation();
  }
}

void ShardedModel::after_forward(std::vector<at::Tensor>& outputs) {
  if (at::GradMode::is_enabled()) exchange_->after_forward(outputs);
}

void ShardedModel::settle() {
  if (exchange_->is_owed()) after_backward();
  divided_->settle();
}

// Of loss.backward(), too: what looks at gradients afterwards, clip_grad_norm_ of LibTorch or step() of the optimizer itself,
// finds those that say what to write, and not none.
void ShardedModel::after_backward() {
  divided_->withdraw();
  bool has_ignored = false;
  for (std::size_t i = 0; i < ignored_.size(); ++i)
    has_ignored = has_ignored || has_new_gradient(i);
  if (exchange_->end_backward(has_ignored) == GradientExchange::End::kExchanged) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> shards;
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      shards.push_back(gradients_->take_gradient(unit));
    std::vector<bool> was_used;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      was_used.push_back(gradients_->was_used(i));
    hand_out_gradients(std::move(shards), was_used);
    average_ignored();
  }
  divided_->put_back();
}

// As a unit has them: the slots that follow one another, and zeros between.
at::Tensor ShardedModel::flat_gradient(const Unit& unit,
                                       const SubtreeSums::Gradients& gradients) const {
  at::Tensor flat = at::zeros({unit.numel()}, at::TensorOptions(unit.dtype).device(device_));
  for (const Slot& slot : unit.slots) {
    const at::Tensor& gradient = gradients[slot.parameter];
    if (!gradient.defined()) continue;
    const at::Tensor& parameter = parameters_[slot.parameter].tensor;
    flat.as_strided(parameter.sizes(), parameter.strides(), slot.offset).copy_(gradient);
  }
  return flat;
}

// Ranks that have the same shard sum a part of it each, and give it to one another: no sum is made twice, and none in another
// order on another replica.
at::Tensor ShardedModel::summed_shard(TreeExchange& exchange, std::vector<at::Tensor> flats) {
  const std::int64_t num_replicas = mesh_->size(MeshAxis::kReplicate);
  if (num_replicas == 1 || flats.front().numel() == 0)
    return exchange.reduce_scatter(std::move(flats));
  constexpr const char* kOperation = "summing gradients in the order of micro-batches";
  const auto& replicas = mesh_->group(MeshAxis::kReplicate);
  if (!part_of_rank_.defined()) {
    const at::Tensor own =
        at::full({1}, group_->rank() * num_replicas + replicas->rank(), at::kLong);
    at::Tensor parts = at::empty({all_->size()}, at::kLong);
    all_->all_gather_into(parts, own, kOperation);
    part_of_rank_ = std::move(parts);
  }
  const std::int64_t numel = flats.front().numel() / group_->size();
  const std::int64_t part = (numel + num_replicas - 1) / num_replicas;
  for (at::Tensor& flat : flats) {
    flat = at::constant_pad_nd(flat.view({group_->size(), numel}), {0, part * num_replicas - numel})
               .view({-1, part})
               .index_select(0, part_of_rank_)
               .view({-1});
  }
  const at::Tensor own = exchange.reduce_scatter(std::move(flats));
  at::Tensor shard = at::empty({part * num_replicas}, own.options());
  replicas->all_gather_into(shard, own, kOperation);
  return shard.narrow(0, 0, numel);
}

void ShardedModel::sum_in_order(SubtreeSums& own, const MicroBatches& run) {
  const at::NoGradGuard no_grad;
  divided_->withdraw();
  TreeExchange exchange(all_, run);
  std::vector<SubtreeSums::Gradients> subtrees = own.take_subtrees();
  const std::vector<bool> was_used = exchange.fill_up(parameters_, subtrees);
  std::vector<at::Tensor> shards;
  for (const Unit& unit : gradients_->units()) {
    std::vector<at::Tensor> flats;
    for (SubtreeSums::Gradients& subtree : subtrees) {
      flats.push_back(flat_gradient(unit, subtree));
      for (const Slot& slot : unit.slots) subtree[slot.parameter].reset();
    }
    shards.push_back(summed_shard(exchange, std::move(flats)));
  }
  own.drop();
  hand_out_gradients(std::move(shards), was_used);
  divided_->put_back();
}

void ShardedModel::hand_out_gradients(std::vector<at::Tensor> shards,
                                      const std::vector<bool>& was_used) {
  if (has_handed_out_ && !has_ever_stepped_ && !pieces_.empty() && !has_piece_gradients())
    warn_of_no_step();
  has_handed_out_ = true;
  was_used_ = was_used;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    shards[unit] = shards[unit].to(units_[unit].dtype);
  for (ShardPiece& piece : pieces_) {
    if (!was_used[piece.place.parameter]) continue;
    const at::Tensor gradient = own_part(piece, shards[piece.unit]);
    at::Tensor& present = piece.tensor.mutable_grad();
    if (present.defined()) {
      if (has_stepped_) warn_of_old_gradients();
      present.add_(gradient);
    } else {
      present = gradient;
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (was_used[i]) divided_->put(i);
  }
  has_stepped_ = false;
}

at::Tensor ShardedModel::own_part(const ShardPiece& piece, const at::Tensor& shard) const {
  const std::int64_t begin =
      piece.place.unit_offset - group_->rank() * units_[piece.unit].shard_numel;
  return shaped(shard.narrow(0, begin, piece.place.numel), piece.place);
}

void ShardedModel::set_on_gradient(const OnGradient& on_gradient) {
  gradients_->set_when_reduced([this, on_gradient](std::size_t unit, const at::Tensor& shard) {
    for (const ShardPiece& piece : pieces_)
      if (piece.unit == unit) on_gradient(piece.tensor, own_part(piece, shard));
  });
}

bool ShardedModel::has_piece_gradients() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [](const ShardPiece& piece) {
    return piece.tensor.grad().defined();
  });
}

void ShardedModel::clear_gradient(const at::Tensor& parameter) {
  parameter.mutable_grad().reset();
  if (divided_) divided_->forget(index_.at(parameter.unsafeGetTensorImpl()));
}

// An average is averaged again only when something was added to it.
bool ShardedModel::has_new_gradient(std::size_t ignored) const {
  const at::Tensor& gradient = ignored_[ignored].grad();
  if (!gradient.defined()) return false;
  const std::optional<Averaged>& last = averaged_[ignored];
  return !last || last->gradient._unsafe_get_target() != gradient.unsafeGetTensorImpl() ||
         last->version != gradient._version();
}

void ShardedModel::average_ignored() {
  if (ignored_.empty()) return;
  at::Tensor used = at::empty({std::ssize(ignored_)}, at::kInt);
  for (std::size_t i = 0; i < ignored_.size(); ++i) {
    used.data_ptr<int>()[i] = has_new_gradient(i) ? 1 : 0;
  }
  all_->all_reduce_(used, Reduction::kMax, "comparing which parameters have gradients");
  for (std::size_t i = 0; i < ignored_.size(); ++i) {
    if (used.data_ptr<int>()[i] == 0) continue;
    at::Tensor& gradient = ignored_[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(ignored_[i]);
    gradient.mul_(1.0 / all_->size());
    all_->all_reduce_(gradient, Reduction::kSum, "averaging gradients of ignored modules");
    averaged_[i].emplace(Averaged{
        c10::weak_intrusive_ptr<c10::TensorImpl>(gradient.getIntrusivePtr()), gradient._version()});
  }
}

// Where every parameter was moved to it must still be: the optimizer would go on writing there.
void ShardedModel::before_write() {
  before_state_is_written();
  if (const auto module = module_.lock()) refuse_added_parameters(*module, trained_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const void* const place = parameters_[i].tensor.storage().unsafeGetStorageImpl();
    if (places_[i] == nullptr || place == places_[i]) continue;
    throw Error(ErrorCode::kUnsupported,
                "the parameter " + parameters_[i].name +
                    " has got other memory since prepare(): it would not be trained",
                "convert, load and move the model before prepare(); use load_state() afterwards");
  }
  settle_writes();
  home_->before_write();
  piece_permit_->give();
}

// Where each rank has copies it can write to them: the optimizer goes on from what all have written.
void ShardedModel::settle_writes() {
  home_->refuse_unsynced_writes();
  take_written();
}

void ShardedModel::take_written() {
  if (!masters_) return;
  const std::vector<std::size_t> written = home_->written_units();
  if (written.empty()) return;
  before_state_is_written();
  masters_->take_written(*home_, written);
}

void ShardedModel::publish(const std::vector<std::size_t>& units) {
  piece_permit_->withdraw();
  if (masters_ && !masters_->are_on_disk()) masters_->write_to(*home_, units);
  // A graph that saved the values of before is told so, as after a step on whole parameters.
  for (const std::size_t unit : units) {
    for (const Slot& slot : units_[unit].slots) {
      parameters_[slot.parameter].tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
  home_->publish(units);
  is_training_ = false;
  has_stepped_ = has_ever_stepped_ = true;
  if (exchange_) exchange_->settled();
}

void ShardedModel::was_stepped(const at::Tensor& piece, std::int64_t begin, std::int64_t numel) {
  if (!masters_ || !masters_->are_on_disk()) return;
  const auto found = piece_tensors_.find(piece.unsafeGetTensorImpl());
  if (found == piece_tensors_.end()) return;
  const ShardPiece& stepped = pieces_[found->second];
  const std::int64_t own = group_->rank() * units_[stepped.unit].shard_numel;
  masters_->write_part(*home_, stepped.unit, stepped.place.unit_offset - own + begin, numel);
}

void ShardedModel::begin_save(FullParameters which, std::span<const at::Tensor> asked) {
  settle_writes();
  if (masters_) masters_->expose(parameters_, which, asked);
}

void ShardedModel::begin_load(FullParameters which, std::span<const at::Tensor> asked) {
  before_state_is_written();
  if (masters_) {
    // The home gets its values with publish_loaded(), which must find nothing held: that is refused before anything is
    // loaded.
    home_->before_write();
    home_->abandon_write();
    masters_->expose(parameters_, which, asked);
  } else {
    home_->begin_load();
  }
  piece_permit_->give();
}

void ShardedModel::end_load() {
  piece_permit_->withdraw();
  if (masters_) {
    masters_->take_exposed(parameters_);
    masters_->withdraw(parameters_);
  } else {
    home_->end_load();
  }
}

void ShardedModel::publish_loaded() {
  std::vector<std::size_t> all(units_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  home_->before_write();
  try {
    if (masters_ && masters_->are_on_disk()) masters_->write_to(*home_, all);
    publish(all);
  } catch (...) {
    home_->abandon_write();  // nobody could read parameters any more, nor tell why
    throw;
  }
}

void ShardedModel::add_memory_use(MemoryUse& use) const {
  const bool has_own_alone = home_->is_shared() || home_->is_paged();
  const std::int64_t num_shards = has_own_alone ? 1 : group_->size();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const at::Tensor& seen = parameters_[units_[unit].slots.front().parameter].tensor;
    if (!home_->is_on_disk())
      use.parameters += units_[unit].shard_numel * seen.element_size() * num_shards;
    if (masters_ && !masters_->are_on_disk() && !masters_->are_the_homes())
      use.masters += static_cast<std::int64_t>(masters_->shard(unit).nbytes());
    if (const auto* storage = pager::paged_storage(seen)) {
      const pager::PagerStatistics statistics = storage->table->statistics();
      use.paged = static_cast<std::int64_t>(statistics.live_bytes);
      use.peak_paged = static_cast<std::int64_t>(statistics.peak_bytes);
    }
  }
  const ParameterHome::WholeBytes whole = home_->whole_bytes();
  use.paged += whole.present;
  use.peak_paged += whole.peak;
  if (gradients_ == nullptr) return;
  use.filling = gradients_->live_bytes();
  use.peak_filling = gradients_->peak_bytes();
}

bool ShardedModel::is_first_replica() const noexcept {
  return mesh_->size(MeshAxis::kReplicate) == 1 || mesh_->group(MeshAxis::kReplicate)->rank() == 0;
}

std::optional<at::Tensor> ShardedModel::piece(const at::Tensor& parameter) const {
  if (is_piece(parameter)) return parameter;
  if (!owns(parameter)) return std::nullopt;
  const ShardPiece* const own = piece_of(parameter);
  return own == nullptr ? at::Tensor() : own->tensor;
}

bool ShardedModel::has_gradients() const {
  return std::find(was_used_.begin(), was_used_.end(), true) != was_used_.end();
}

bool ShardedModel::owns(const at::Tensor& parameter) const {
  return index_.contains(parameter.unsafeGetTensorImpl());
}

const ShardPiece* ShardedModel::piece_of(const at::Tensor& parameter) const {
  const std::ptrdiff_t piece = piece_index_.at(index_.at(parameter.unsafeGetTensorImpl()));
  return piece < 0 ? nullptr : &pieces_[static_cast<std::size_t>(piece)];
}

std::size_t ShardedModel::unit_of(const at::Tensor& parameter) const {
  return unit_index_.at(index_.at(parameter.unsafeGetTensorImpl()));
}

}  // namespace accel::sharding

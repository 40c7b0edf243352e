// ShardedModel: one model whose parameters, gradients and optimizer states are divided over the ranks.
//
// The module stays as it is: each parameter becomes a view of its unit's memory (ParameterHome), every rank sees all
// values, and each rank updates its own shard of every unit. The optimizer works on pieces: leaf tensors that share
// memory with the parts of parameters in this rank's shards, with the averaged gradients as their grad. After a
// synchronising backward the parameters themselves have none: something stands in for it (divided_gradients.h).
//
// Where the recipe has a type of parameters (precision_recipe.h) the home has them in that, and the pieces are views of this
// rank's masters (master_shards.h).
//
// Cut by tensors, a piece is a whole parameter, of its shape; else it is a flat range of one.
//
// Frozen parameters stay as they are, but for their dtype. Ignored ones stay whole; their gradients are averaged at the
// end of backward.
//
// Threads:  the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/gradients/divided_gradients.h"
#include "libaccel/engine/gradients/gradient_exchange.h"
#include "libaccel/engine/gradients/gradient_shards.h"
#include "libaccel/engine/gradients/model_sync.h"
#include "libaccel/engine/gradients/subtree_sums.h"
#include "libaccel/engine/homes/parameter_claim.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/pager/write_permit.h"
#include "libaccel/engine/precision/precision_recipe.h"
#include "libaccel/engine/process/mesh.h"
#include "libaccel/engine/settings/fsdp_settings.h"
#include "libaccel/engine/sharding/master_shards.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unit_layout.h"

namespace torch::nn {
class Module;
}

namespace accel {
class TreeExchange;
}

namespace accel::sharding {

struct ShardPiece {
  std::size_t unit = 0;
  Piece place;
  // A leaf; its grad is this rank's part of the averaged gradient. [numel], or as the parameter when it is all of it.
  at::Tensor tensor;
};

class ShardedModel : public ModelSync {
 public:
  // device: where the model is put, parameter by parameter, and never all of it; nullopt: it stays where it is.
  // With settings.keeps_whole_gradients gradients are left to the derived class (whole_gradient_model.h).
  // Checks that every rank has the same parameters, sends rank 0's (unless told not to) and moves them into their units.
  // Throws kShapeMismatch on every rank naming the first parameter that differs; kUnsupported for sparse gradients and
  // for parameters that overlap, or that another prepared model has; what wrap_groups() and ignored_parameters() throw; kPeerLost, kProcessGroup.
  // Requires: every rank calls it; a parameter that requires a gradient.
  ShardedModel(const torch::nn::Module& module,
               std::shared_ptr<Mesh> mesh,
               const FsdpSettings& settings,
               const PrecisionRecipe& recipe,
               std::optional<c10::Device> device);

  void before_forward() override;
  [[nodiscard]] bool wants_outputs() const noexcept override { return false; }
  void after_forward(std::vector<at::Tensor>& outputs) override;
  void begin_backward() noexcept override { exchange_->begin_backward(); }
  void after_backward() override;
  void abandon_backward() noexcept override { exchange_->abandon(); }
  bool set_sync_in_backward(bool sync) noexcept override { return exchange_->set_sync(sync); }
  [[nodiscard]] bool syncs_in_backward() const noexcept override { return exchange_->syncs(); }
  void sync_next_backward() override { exchange_->arm(); }
  [[nodiscard]] GradientExchange& exchange() noexcept override { return *exchange_; }
  void sum_in_order(SubtreeSums& own, const MicroBatches& run) override;

  [[nodiscard]] bool is_divided() const noexcept override { return true; }
  [[nodiscard]] bool is_first_replica() const noexcept override;
  [[nodiscard]] std::span<const NamedParameter> divided_parameters() const override {
    return parameters_;
  }
  [[nodiscard]] std::optional<at::Tensor> piece(const at::Tensor& parameter) const override;
  // What after_backward() does, for a backward that was not run by Accelerator::backward() and has brought this rank no gradient:
  // with one, its end does it. Clears the gradients of pieces whose parameters' the program has cleared since.
  void settle() override;
  [[nodiscard]] bool has_gradients() const override;
  [[nodiscard]] bool is_paged() const noexcept override { return home_->is_paged(); }
  [[nodiscard]] bool has_masters() const noexcept override { return masters_.has_value(); }
  void add_memory_use(MemoryUse& use) const override;
  // Throws kInvalidArgument as before_write().
  void begin_save(FullParameters which, std::span<const at::Tensor> asked) override;
  void end_save() override {
    if (masters_) masters_->withdraw(parameters_);
  }
  void begin_load(FullParameters which, std::span<const at::Tensor> asked) override;
  void end_load() override;
  // Each rank sees what its own pieces have, too.
  void publish_loaded() override;
  void add_parts(checkpoint::DividedTensors& divided) const override;
  void add_to_view(const torch::nn::Module& module, accel::StateView& view) override;

  // ---- for the optimizer

  // Whether this parameter is divided.
  [[nodiscard]] bool owns(const at::Tensor& parameter) const;
  // This rank's pieces of a parameter that is divided: none or one. Borrowed.
  [[nodiscard]] const ShardPiece* piece_of(const at::Tensor& parameter) const;
  [[nodiscard]] std::size_t unit_of(const at::Tensor& parameter) const;
  // Whether a piece is a whole parameter.
  [[nodiscard]] bool is_cut_by_tensor() const noexcept { return cut_ == ShardCut::kByTensor; }
  // Whether this is the tensor of one of this rank's pieces.
  [[nodiscard]] bool is_piece(const at::Tensor& tensor) const {
    return piece_tensors_.contains(tensor.unsafeGetTensorImpl());
  }
  // Around writes to the pieces, which have what the program has written to parameters then; at other times an operator that
  // writes to one throws kUnsupported with the line to write, as step() of the optimizer itself does. Throws kUnsupported naming a
  // parameter whose memory was replaced since prepare(), or that was registered or unfrozen since; kInvalidArgument naming
  // one that only some ranks have written to.
  void before_write();
  void publish(const std::vector<std::size_t>& units);
  // Called in the backward with each piece and its gradient, when that is complete. Requires: gradients are divided, and summed in the
  // dtype of the pieces.
  using OnGradient = std::function<void(const at::Tensor& piece, const at::Tensor& gradient)>;
  void set_on_gradient(const OnGradient& on_gradient);
  // Elements of a piece of it or of another model have been stepped. Masters that lie on disk are rounded then, while they are in
  // memory.
  void was_stepped(const at::Tensor& piece, std::int64_t begin, std::int64_t numel);
  void abandon_write() noexcept {
    piece_permit_->withdraw();
    home_->abandon_write();
  }

  // ---- for checkpoints and tests

  [[nodiscard]] const std::vector<NamedParameter>& parameters() const noexcept {
    return parameters_;
  }
  // The optimizer has cleared the gradients of the pieces of some parameters: these have none either.
  void clear_gradient(const at::Tensor& parameter);
  // Those that are there may be added to: the optimizer set its own to zero, and whoever has others wants them added.
  void gradients_were_cleared() noexcept {
    has_stepped_ = false;
    if (exchange_) exchange_->settled();
  }
  // [shard_numel] of this rank, in the precision that the optimizer sees. Borrowed.
  [[nodiscard]] at::Tensor shard(std::size_t unit) const;
  // In full precision, of a parameter that is whole on every rank.
  [[nodiscard]] at::Tensor full_values_of(const at::Tensor& parameter) const;
  [[nodiscard]] const std::vector<Unit>& units() const noexcept { return units_; }
  // Where its parameters, shards and gradients are.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  // The ranks that the model is divided over.
  [[nodiscard]] ProcessGroup& group() const noexcept { return *group_; }
  [[nodiscard]] Mesh& mesh() const noexcept { return *mesh_; }

 protected:
  [[nodiscard]] std::vector<ShardPiece>& pieces() noexcept { return pieces_; }

 private:
  [[nodiscard]] std::vector<Unit> units_in(std::optional<at::ScalarType> dtype) const;
  // What stays whole is put on the device, with rank 0's values or its own.
  void place_others(const torch::nn::Module& module, bool takes_from_rank_0);
  void find_home(const FsdpSettings& settings);
  void keep_masters(const FsdpSettings& settings);
  void round_others(const torch::nn::Module& module,
                    const std::unordered_set<const c10::TensorImpl*>& ignored);
  void move_into_units(bool takes_from_rank_0);
  // Shards of gradients lie in a file there, from when they are complete to when they are stepped.
  void keep_gradients_in(const std::string& folder);
  void cut_pieces();
  // This rank's shard, of which operators write to these pieces only with the permit.
  // The part of a shard of `piece`'s unit that is the piece's.
  [[nodiscard]] at::Tensor own_part(const ShardPiece& piece, const at::Tensor& shard) const;
  [[nodiscard]] at::Tensor guarded_shard(std::size_t unit, const std::vector<Piece>& places) const;
  // What lies at `range`, a piece's part of a unit or gradient, in the shape of the piece.
  [[nodiscard]] at::Tensor shaped(const at::Tensor& range, const Piece& place) const;
  // shards: by unit. was_used: by parameter.
  void hand_out_gradients(std::vector<at::Tensor> shards, const std::vector<bool>& was_used);
  [[nodiscard]] at::Tensor flat_gradient(const Unit& unit,
                                         const SubtreeSums::Gradients& gradients) const;
  // This rank's shard of the sum of the subtrees of all ranks.
  [[nodiscard]] at::Tensor summed_shard(TreeExchange& exchange, std::vector<at::Tensor> flats);
  [[nodiscard]] bool has_piece_gradients() const;
  [[nodiscard]] bool has_new_gradient(std::size_t ignored) const;
  void average_ignored();
  void settle_writes();
  // Lets this rank's pieces have what the program has written to parameters since the last step.
  void take_written();

  std::shared_ptr<Mesh> mesh_;
  std::shared_ptr<ProcessGroup> group_;  // along kShard
  std::shared_ptr<ProcessGroup> all_;    // along kData
  std::weak_ptr<const torch::nn::Module> module_;
  std::unordered_set<const c10::TensorImpl*> trained_;
  std::vector<NamedParameter> parameters_;  // those that are divided
  std::optional<ParameterClaim> claim_;     // on them
  std::vector<at::Tensor> ignored_;         // trained, but whole on every rank
  std::vector<Unit> units_;                 // with the dtypes that the optimizer sees
  PrecisionRecipe recipe_;
  ShardCut cut_;
  c10::Device device_{c10::kCPU};
  std::unique_ptr<ParameterHome> home_;
  std::optional<MasterShards> masters_;               // else the home is what pieces are views of
  std::vector<ShardPiece> pieces_;                    // of this rank
  std::shared_ptr<pager::WritePermit> piece_permit_;  // given during steps and loads
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;  // into parameters_
  std::vector<std::ptrdiff_t> piece_index_;                        // by parameter; -1: none
  std::vector<std::size_t> unit_index_;                            // by parameter
  std::unique_ptr<GradientShards> gradients_;  // nullptr: a derived class averages whole ones
  std::optional<GradientExchange> exchange_;   // of them
  std::optional<DividedGradients> divided_;    // of the parameters, where gradients are shards
  std::unordered_map<const c10::TensorImpl*, std::size_t> piece_tensors_;  // their place in pieces_
  std::vector<const void*> places_;  // of the parameters: their storages
  // The gradients of `ignored_` when they were averaged last. Weak, so that no other gradient gets the address.
  struct Averaged {
    c10::weak_intrusive_ptr<c10::TensorImpl> gradient;
    std::int64_t version;
  };
  std::vector<std::optional<Averaged>> averaged_;
  bool is_training_ = false;  // a forward with gradients has begun since the last step
  bool has_stepped_ = false;  // since gradients were handed out, or cleared by a prepared optimizer
  bool has_ever_stepped_ = false;
  bool has_handed_out_ = false;
  std::vector<bool> was_used_;  // by parameter, in the last exchange
  at::Tensor part_of_rank_;     // by rank of all_; undefined: no replicas, or not asked for yet
};

}  // namespace accel::sharding

// Accelerator: runs a training loop on one process or on many.
//
//   accel::Accelerator accelerator({.mixed_precision = "bf16", .gradient_accumulation_steps = 4});
//   auto [model, optimizer, loader, scheduler] =
//       accelerator.prepare(net, adamw, data_loader, schedule);
//   for (auto& batch : loader) {
//     auto accumulating = accelerator.accumulate(model);
//     auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
//     accelerator.backward(loss);
//     if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model->parameters(), 1.0);
//     optimizer.step();
//     scheduler.step();
//     optimizer.zero_grad();
//   }
//
// Names and behaviour equal HF Accelerate; docs/reference/parity.md lists the differences.
//
// Threads:  the thread that trains. Collectives in the same order on every rank.
// Cost:     nothing per step beyond what the job needs: no allocation, no synchronisation with a
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator_options.h>
#include <accel/checkpoint.h>
#include <accel/detail/dataloader_base.h>
#include <accel/detail/join_scope.h>
#include <accel/detail/preparable.h>
#include <accel/detail/sync_scopes.h>
#include <accel/detail/valid_rows.h>
#include <accel/export.h>
#include <accel/memory.h>
#include <accel/micro_batches.h>
#include <accel/operations.h>
#include <accel/optim.h>
#include <accel/precision.h>
#include <accel/prepared_model.h>
#include <accel/state.h>
#include <accel/state_dict.h>
#include <accel/state_hooks.h>
#include <accel/state_view.h>
#include <accel/tracker_value.h>

namespace c10 {
struct IValue;
}

namespace accel {

class Profiler;
struct RunPlan;
namespace detail {
class FsdpFiles;
}

// Options of backward(), as in at::Tensor::backward().
struct BackwardOptions {
  // Whether another backward of the same forward follows; create_graph when not set.
  std::optional<bool> retain_graph;
  // Records a graph of the gradients, for derivatives of higher order.
  bool create_graph = false;
  // The weight of this micro-batch, for example its number of tokens if the loss is their mean. At the end of an accumulation the
  // gradient is sum(weight * gradient) / sum(weight), over all micro-batches and ranks: the gradient of the mean over all tokens.
  // A micro-batch of weight 0 has no effect, even if its loss is NaN (no tokens). If all weights are 0 the gradients are zero. Not
  // set: all micro-batches have the same weight.
  std::optional<double> weight;
  // The learning rate of a prepared optimizer that steps in the backward (accel/lomo.h). If it is set, the optimizer steps.
  std::optional<double> learning_rate;
};

struct SaveObjectOptions;  // accel/saved_object.h

struct LoadStateOptions {
  // true: weights that only the model or only the checkpoint has are an error; false: they are ignored.
  bool strict = true;
};

struct StateDictOptions {
  StateDictType type = StateDictType::kFull;
  bool unwrap = true;
};

class ACCEL_EXPORT Accelerator {
 public:
  // Sets up the state of the process (accel/state.h) and joins the other ranks.
  // Throws the errors of AcceleratorState, and kInvalidArgument for options that contradict each
  // other.
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;
  Accelerator& operator=(Accelerator&&) noexcept;

  // --- preparing

  // Prepares any mix of models, optimizers, data loaders and schedulers. Returns them in the same
  // order: a tuple, or the object itself if there is only one. Objects that are already prepared are
  // returned unchanged.
  //
  //   model      a module holder or shared_ptr to a module    -> Prepared<the same>
  //   optimizer  lvalue (borrowed: keep it alive), rvalue     -> AcceleratedOptimizer
  //              (taken over) or shared_ptr
  //   loader     accel::DataLoader                            -> the same, for this rank
  //   scheduler  the same three; anything Stateful with       -> AcceleratedScheduler
  //              step(). Follows its own optimizer.
  //   others     without a step(): tokenizers, nullptr, ...   -> an lvalue as a reference, else the value
  //
  // Throws kShapeMismatch if the ranks have different models, kDataSharding for batches that cannot
  // be divided; kPeerLost, kProcessGroup.
  // Requires: every rank prepares the same objects in the same order.
  template <typename... Objects>
  decltype(auto) prepare(Objects&&... objects) {
    return prepare(PrepareOptions{}, std::forward<Objects>(objects)...);
  }
  // The same, with a device placement for each object: prepare({.device_placement = {{true, false}}}, net, data_loader). Throws
  // kInvalidArgument for a list of another length, and for any list with DeepSpeed; nothing is prepared then.
  template <typename... Objects>
  decltype(auto) prepare(PrepareOptions options, Objects&&... objects) {
    static_assert(sizeof...(Objects) > 0, "prepare() wants at least one object");
    check_device_placement(options, sizeof...(Objects));
    std::size_t place = 0;
    const auto placement = [&]() -> std::optional<bool> {
      if (!options.device_placement) return std::nullopt;
      return bool{(*options.device_placement)[place++]};
    };
    using Results =
        std::tuple<decltype(prepare_one(std::forward<Objects>(objects), placement()))...>;
    Results prepared{prepare_one(std::forward<Objects>(objects), placement())...};
    match_optimizers();
    match_schedulers();
    if constexpr (sizeof...(Objects) == 1) {
      return std::tuple_element_t<0, Results>(std::get<0>(std::move(prepared)));
    } else {
      return prepared;
    }
  }

  // Prepares one model, like prepare(). Throws the errors of prepare().
  template <detail::ModuleHandle Handle>
  Prepared<Handle> prepare_model(const Handle& model, const PrepareModelOptions& options = {}) {
    if constexpr (requires { model.is_empty(); }) {
      if (model.is_empty()) return Prepared<Handle>(model, runtime_for(nullptr, options));
    }
    Prepared<Handle> prepared(model, runtime_for(detail::module_of(model), options));
    match_optimizers();
    return prepared;
  }
  AcceleratedOptimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  // The optimizer and the scheduler of DeepSpeed's configuration file (accel/deepspeed.h). Prepare an optimizer before its
  // scheduler. Throw kInvalidArgument if both the program and the file have one, or neither.
  AcceleratedOptimizer prepare_optimizer(const DummyOptim& optimizer);
  AcceleratedScheduler prepare_scheduler(const DummyScheduler& scheduler) {
    AcceleratedScheduler prepared = add_scheduler(scheduler);
    match_schedulers();
    return prepared;
  }
  AcceleratedScheduler prepare_scheduler(std::shared_ptr<Scheduler> scheduler) {
    AcceleratedScheduler prepared = add_scheduler(std::move(scheduler));
    match_schedulers();
    return prepared;
  }

  // Returns this rank's part of a loader. A prepared loader is returned unchanged.
  template <detail::DataLoaderHandle Loader>
  Loader prepare_data_loader(const Loader& loader, const PrepareDataLoaderOptions& options = {}) {
    Loader prepared = detail::shard_loader(loader, shard_options(options.device_placement));
    add_data_loader(prepared.ptr());
    return prepared;
  }

  // The same, for batches that rank 0 reads for all (dispatch_batches): `slice` cuts out the rows of each rank, see BatchSlicer.
  // Without dispatch_batches it is not called.
  template <detail::DataLoaderHandle Loader>
  Loader prepare_data_loader(const Loader& loader,
                             const BatchSlicer<typename Loader::batch_type>& slice_fn_for_dispatch,
                             const PrepareDataLoaderOptions& options = {}) {
    Loader prepared = detail::shard_loader(
        loader, shard_options(options.device_placement), slice_fn_for_dispatch);
    add_data_loader(prepared.ptr());
    return prepared;
  }

  // Returns a loader that skips the first batches in this epoch; see accel/dataloader.h. Throws kInvalidArgument for a number
  // below 0.
  template <detail::DataLoaderHandle Loader>
  [[nodiscard]] Loader skip_first_batches(const Loader& loader,
                                          std::int64_t num_batches = 0) const {
    return detail::skip_batches(loader, num_batches);
  }

  // How prepare() treats loaders: AcceleratorOptions::dataloader_config.
  [[nodiscard]] bool split_batches() const { return shard_options().split_batches; }
  [[nodiscard]] std::optional<bool> dispatch_batches() const {
    return shard_options().dispatch_batches;
  }
  [[nodiscard]] bool even_batches() const { return shard_options().even_batches; }
  // Applies to loaders prepared from now on, and to join_uneven_inputs().
  void set_even_batches(bool even_batches);
  [[nodiscard]] bool use_seedable_sampler() const { return shard_options().use_seedable_sampler; }
  [[nodiscard]] bool non_blocking() const { return shard_options().non_blocking; }
  [[nodiscard]] bool use_stateful_dataloader() const noexcept;

  // The prepared objects.
  template <typename Handle>
  static Handle unwrap_model(const Prepared<Handle>& model) {
    return model.unwrap();
  }

  // Whether a device map put some weights of the model on disk and others in memory (accel/offload.h).
  [[nodiscard]] static bool verify_device_map(const torch::nn::Module& model);

  // Forgets all prepared and registered objects and resets the count of batches. The caller may keep
  // the objects. Frees the memory for saves in the background.
  void free_memory();
  void clear() { free_memory(); }
  // The same, and releases the given objects (accel/memory.h).
  template <typename... Objects>
  requires(sizeof...(Objects) > 0) void free_memory(Objects&... objects) {
    free_memory();
    release_memory(objects...);
  }

  // --- planning (accel/plan.h, which a program that calls these includes)

  // What a step takes with these options, before it runs and without memory for it: the number of processes and machines, the
  // strategy, mixed precision, accumulation, activation_checkpointing and the optimizer on disk are those of this Accelerator.
  // forward: that of one batch on the model itself, which returns the loss; the backward is the Accelerator's. The model may be
  // without memory (accel/big_model.h). Each rank may call it alone: no collective. Throws as StepPlan; kUnsupported for a model
  // that was prepared for several ranks, on a device, and for a mixed_precision_policy and step_in_backward.
  [[nodiscard]] RunPlan plan(torch::nn::Module& model,
                             torch::optim::Optimizer* optimizer,
                             const std::function<at::Tensor()>& forward) const;
  // The same of a model that is prepared, whose forward calls it: plan(model, optimizer, [&] { return loss_of(model(x)); }).
  template <typename Handle, typename Plan = RunPlan>
  [[nodiscard]] Plan plan(const Prepared<Handle>& model,
                          const AcceleratedOptimizer& optimizer,
                          const std::function<at::Tensor()>& forward) const {
    return plan(*detail::module_of(model.unwrap()), &optimizer.optimizer(), forward);
  }

  // --- the training step

  // loss.backward(), with the loss divided by the number of accumulation steps and scaled for fp16. Gradients that were unscaled but
  // not stepped are scaled again first.
  // Throws kPeerLost or kProcessGroup if the gradients could not be exchanged; kInvalidArgument naming a parameter whose forward did
  // not go through the prepared model, if this cannot be repaired (accel/prepared_model.h); kUnsupported for create_graph with
  // averaged gradients, because an average has no graph. Exceptions of the program pass through; if they occur on all ranks at the
  // same place, training may continue with zero_grad() and a forward.
  // With a weight (BackwardOptions) throws kInvalidArgument for a weight below 0, NaN or infinite, or if other micro-batches of the
  // accumulation have none; kUnsupported within no_sync() or LocalSGD, because no sum of weights is formed there.
  // Requires: all ranks give weights, or none; one backward() for each batch. Cost of weights: an all-reduce of 8 bytes and a
  // pass over the gradients for each accumulation.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});
  // A backward in which the prepared Lomo or AdaLomo steps (accel/lomo.h), like backward() with a learning_rate. Throws
  // kInvalidArgument without such an optimizer, with several of them, and if gradients are accumulated on several ranks. Requires:
  // every rank calls it.
  void lomo_backward(const at::Tensor& loss, double learning_rate);

  // Counts a batch and decides whether it ends an accumulation: every gradient_accumulation_steps
  // batches, and at the end of the loader. Otherwise the models do not synchronise inside the
  // scope.
  template <typename... Handles>
  [[nodiscard]] NoSyncScope accumulate(const Prepared<Handles>&... models) {
    if (next_batch_syncs()) return NoSyncScope();
    return NoSyncScope({models.runtime().get()...});
  }
  template <typename... Handles>
  [[nodiscard]] static NoSyncScope no_sync(const Prepared<Handles>&... models) {
    return NoSyncScope({models.runtime().get()...});
  }
  // A scope for a backward whose forward ran inside no_sync().
  template <typename Handle>
  [[nodiscard]] static SyncScope trigger_sync_in_backward(const Prepared<Handle>& model) {
    return SyncScope(*model.runtime());
  }

  // A scope for one pass over a loader with different numbers of batches on the ranks. At its end a rank without batches takes part in
  // the calls of the others (accel/detail/join_scope.h). Give all models that are trained inside. With even_batches, the default of
  // loaders, the scope only sets this option on the loaders; iterable loaders keep theirs, with a warning. Requires: every rank makes
  // and leaves the scope.
  //
  //   { auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
  //     for (auto& batch : loader) ... }
  template <typename Handle>
  [[nodiscard]] JoinScope join_uneven_inputs(const Prepared<Handle>& model,
                                             const JoinOptions& options = {}) const {
    return join({model.runtime().get()}, options);
  }
  // The same for several models; JoinOptions may follow them.
  template <typename First, typename Second, typename... More>
  [[nodiscard]] JoinScope join_uneven_inputs(const Prepared<First>& first,
                                             const Prepared<Second>& second,
                                             const More&... more) const {
    JoinOptions options;
    std::vector<const detail::ModelRuntime*> models{first.runtime().get(), second.runtime().get()};
    const auto add = [&](const auto& each) {
      if constexpr (std::is_same_v<decltype(each), const JoinOptions&>) {
        options = each;
      } else {
        models.push_back(each.runtime().get());
      }
    };
    (add(more), ...);
    return join(models, options);
  }

  // Whether this batch ends an accumulation.
  [[nodiscard]] bool sync_gradients() const { return gradient_state().sync_gradients(); }
  [[nodiscard]] int gradient_accumulation_steps() const { return gradient_state().num_steps(); }
  void set_gradient_accumulation_steps(int steps);

  // Whether training is reproducible (AcceleratorOptions::reproducible), and this rank's micro-batches of each step; otherwise all
  // gradient_accumulation_steps.
  [[nodiscard]] bool reproducible() const noexcept;
  [[nodiscard]] MicroBatches micro_batches() const;
  // Prepares a loader for training. Like prepare_data_loader(), but in reproducible training its batches are the micro-batches of the
  // steps, and each rank gets its range of them. With even_batches an incomplete last step gets the first batches of the pass again;
  // otherwise, and with drop_last, it is skipped. The shuffle depends on seed and epoch. Give loaders for evaluation to prepare().
  // Throws kUnsupported for an iterable dataset, dispatch_batches and split_batches.
  template <detail::DataLoaderHandle Loader>
  Loader prepare_micro_batches(const Loader& loader) {
    Loader prepared = detail::shard_loader(loader, micro_batch_options());
    add_data_loader(prepared.ptr());
    return prepared;
  }

  // Scales the gradients so that their total norm is at most max_norm. Returns the norm before, a 0-d tensor. norm_type may be
  // infinity; 0 and below are kUnsupported if a gradient is divided over the ranks. fp16 gradients are unscaled first, which is
  // kInvalidArgument during an accumulation. Throws kInvalidArgument for a max_norm below 0 or NaN.
  // Requires: if any prepared model is sharded, every rank calls it, for parameters of any model; it then waits for all ranks and
  // for the device. Otherwise it waits for neither.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                             double max_norm,
                             double norm_type = 2.0);
  // Clamps each gradient to [-clip_value, clip_value]. Throws kInvalidArgument for a clip_value below 0 or NaN.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  // fp16: divides the gradients of all optimizers, of one, or of several, by the scale. Otherwise it does nothing.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  void unscale_gradients(const std::vector<AcceleratedOptimizer>& optimizers) {
    for (const AcceleratedOptimizer& optimizer : optimizers) unscale_gradients(optimizer);
  }

  // A scope with the precision of the Accelerator, for example for the loss. Forwards of prepared
  // models need no scope.
  [[nodiscard]] Autocast autocast() const;
  [[nodiscard]] Autocast autocast(const AutocastKwargs& options) const;

  // Whether an optimizer skipped its last step because of an overflow (fp16).
  [[nodiscard]] bool optimizer_step_was_skipped() const;
  [[nodiscard]] GradScaler* scaler() const noexcept;  // nullptr unless fp16

  // A flag that one rank sets and all ranks read: check_trigger() is true on every rank if any rank
  // called set_trigger() before; it clears the flag. Requires: every rank calls check_trigger().
  void set_trigger();
  [[nodiscard]] bool check_trigger();

  // --- processes

  [[nodiscard]] const AcceleratorState& state() const noexcept;
  // Selects one of AcceleratorOptions::deepspeed_plugins for later calls of prepare(); at first the first one is selected. Throw
  // kInvalidArgument for an unknown name; select also throws kUnsupported if one plugin copies models (stage 0) and another shards
  // them. Requires: every rank selects the same.
  void select_deepspeed_plugin(const std::string& name);
  [[nodiscard]] const DeepSpeedPlugin& get_deepspeed_plugin(const std::string& name) const;
  // The selected plugin. Throws kInvalidArgument if models are not divided by DeepSpeed's stages.
  [[nodiscard]] const DeepSpeedPlugin& deepspeed_plugin() const;
  // The configuration that DeepSpeed would get, as JSON: values of prepared objects replace "auto" in the file.
  // Throws as deepspeed_plugin(), and kInvalidArgument if the file's train_batch_size does not match the loaders.
  [[nodiscard]] std::string deepspeed_config() const;
  [[nodiscard]] const GradientState& gradient_state() const noexcept;
  [[nodiscard]] c10::Device device() const { return state().device(); }
  [[nodiscard]] DistributedType distributed_type() const { return state().distributed_type(); }
  [[nodiscard]] bool use_distributed() const { return state().use_distributed(); }
  // Whether each process uses its own device other than the CPU.
  [[nodiscard]] bool multi_device() const { return use_distributed() && !device().is_cpu(); }
  [[nodiscard]] int num_processes() const { return state().num_processes(); }
  [[nodiscard]] int process_index() const { return state().process_index(); }
  [[nodiscard]] int local_process_index() const { return state().local_process_index(); }
  [[nodiscard]] bool is_main_process() const { return state().is_main_process(); }
  [[nodiscard]] bool is_local_main_process() const { return state().is_local_main_process(); }
  [[nodiscard]] bool is_last_process() const { return state().is_last_process(); }
  [[nodiscard]] PrecisionType mixed_precision() const { return state().mixed_precision(); }

  // --- how the processes are laid out (accel/parallelism_config.h)

  // The complete configuration, with sizes whose product is num_processes(); not set without a configuration.
  [[nodiscard]] const std::optional<ParallelismConfig>& parallelism_config() const noexcept;
  // The grid of its axes above 1; not set without a configuration, and on one process.
  [[nodiscard]] const std::optional<DeviceMesh>& torch_device_mesh() const noexcept;
  // Whether FSDP of version 2 divides models; false without a process group.
  [[nodiscard]] bool is_fsdp2() const;
  [[nodiscard]] bool is_composable_parallelism_enabled() const { return is_fsdp2(); }
  // Whether this process takes part in saving a model: every process with a configuration, else the main process of a node.
  [[nodiscard]] bool should_save_model() const;
  // The position of this process along dp_replicate, dp_shard and tp; 0 along an axis of size 1. Throw kNotInitialized without a
  // configuration.
  [[nodiscard]] int data_parallel_rank() const;
  [[nodiscard]] int data_parallel_shard_rank() const;
  [[nodiscard]] int tensor_parallel_rank() const;
  // Always throw kUnsupported, as in Accelerate.
  [[nodiscard]] int pipeline_parallel_rank() const;
  [[nodiscard]] int context_parallel_rank() const;
  // The value of ACCELERATE_FP8_BACKEND for Python workers, else kNo. Throws kEnvInvalid.
  [[nodiscard]] FP8BackendType fp8_backend() const;

  // How often the job was restarted before this run; above 0 a program continues from its
  // checkpoint.
  [[nodiscard]] int restart_count() const { return state().restart_count(); }

  void wait_for_everyone() const { state().wait_for_everyone(); }
  [[nodiscard]] TurnGuard main_process_first() const { return state().main_process_first(); }
  [[nodiscard]] TurnGuard local_main_process_first() const {
    return state().local_main_process_first();
  }
  // As the functions of PartialState with these names (accel/state.h).
  template <typename F>
  auto on_main_process(F&& fn) const {
    return state().on_main_process(std::forward<F>(fn));
  }
  template <typename F>
  auto on_local_main_process(F&& fn) const {
    return state().on_local_main_process(std::forward<F>(fn));
  }
  template <typename F>
  auto on_last_process(F&& fn) const {
    return state().on_last_process(std::forward<F>(fn));
  }
  template <typename F>
  auto on_process(int index, F&& fn) const {
    return state().on_process(index, std::forward<F>(fn));
  }
  template <typename F>
  auto on_local_process(int local_index, F&& fn) const {
    return state().on_local_process(local_index, std::forward<F>(fn));
  }
  template <typename T>
  [[nodiscard]] T split_between_processes(const T& inputs, const SplitOptions& options = {}) const {
    return state().split_between_processes(inputs, options);
  }
  template <typename... Args>
  void print(const Args&... args) const {
    state().print(args...);
  }

  // --- collectives (accel/operations.h)

  // As the functions of accel/operations.h with these names.
  template <typename T>
  [[nodiscard]] T gather(const T& data) const {
    return accel::gather(data);
  }
  // Like gather(), without the samples that were repeated to fill the last batch, also if the loader does not know its length or the
  // size of its batches. Vectors without tensors are gathered as objects.
  template <typename T>
  [[nodiscard]] T gather_for_metrics(const T& data) const {
    const std::optional<std::int64_t> num_samples = samples_of_last_batch();
    const std::optional<std::int64_t> own =
        num_samples ? std::nullopt : own_samples_of_last_batch();
    if constexpr (TensorNested<T>) {
      T gathered = accel::gather(data);
      if (own) return detail::without_repeats(gathered, *own);
      return num_samples ? slice_tensors(gathered, 0, *num_samples) : gathered;
    } else {
      T gathered = accel::gather_object(own ? detail::first_of(data, *own) : data);
      if (num_samples && static_cast<std::size_t>(*num_samples) < gathered.size()) {
        gathered.erase(gathered.begin() + *num_samples, gathered.end());
      }
      return gathered;
    }
  }
  // Returns the sum by default; accel::reduce() returns the mean by default. Both as in Accelerate.
  template <typename T>
  [[nodiscard]] T reduce(const T& data, Reduction reduction = Reduction::kSum) const {
    return accel::reduce(data, reduction);
  }
  template <typename T>
  [[nodiscard]] T pad_across_processes(const T& data, const PadOptions& options = {}) const {
    return accel::pad_across_processes(data, options);
  }

  // --- project and checkpoints

  [[nodiscard]] const ProjectConfiguration& project_configuration() const noexcept;
  [[nodiscard]] const std::string& project_dir() const {
    return project_configuration().project_dir;
  }
  [[nodiscard]] const std::string& logging_dir() const {
    return project_configuration().logging_dir;
  }
  // The number of the next checkpoint.
  [[nodiscard]] std::int64_t save_iteration() const noexcept;

  // Saves and loads these objects together with the prepared ones, in the order of registration. They
  // must live until the end of the Accelerator or until free_memory().
  template <typename... Objects>
  void register_for_checkpointing(Objects&... objects) {
    static_assert((std::is_convertible_v<Objects*, Stateful*> && ...),
                  "register_for_checkpointing() wants objects that derive from accel::Stateful");
    (add_custom_object(objects), ...);
  }

  // Calls the hook before save_state() writes, or before load_state() changes anything; see
  // accel/state_hooks.h.
  RemovableHandle register_save_state_pre_hook(SaveStateHook hook);
  RemovableHandle register_save_state_pre_hook(StateHook hook);
  RemovableHandle register_load_state_pre_hook(LoadStateHook hook);

  // Saves all prepared and registered objects. With automatic_checkpoint_naming it saves into the next
  // <project_dir>/checkpoints/checkpoint_N and removes old checkpoints above total_limit; otherwise it
  // saves into `folder`. Throws kInvalidArgument without either, and the errors of save_checkpoint().
  // Requires: every rank calls it.
  CheckpointInfo save_state(const std::filesystem::path& folder = {},
                            const SaveStateOptions& options = {});
  // Starts a save_state() in the background. Returns when the state is copied, or earlier (options.async_copy); the copy is written
  // while training continues. Only one save runs at a time. save_state(), another async_save_state(), load_state(), wait_for_save() and
  // end_training() first wait for it, and throw its error on all ranks. A failed save also uses up its number. Requires: every rank
  // calls it.
  void async_save_state(const std::filesystem::path& folder = {},
                        const SaveStateOptions& options = {});
  // Waits for the end of async_save_state() and returns the checkpoint; std::nullopt if no save is running, or its result was returned
  // before. Throws the errors of save_state(). Requires: every rank calls it.
  std::optional<CheckpointInfo> wait_for_save();
  // Loads `folder`, also one that HF Accelerate's save_state() wrote. Without a folder it loads the newest complete checkpoint of the
  // project. Throws kCheckpointIncomplete if there is none, and the errors of load_checkpoint().
  CheckpointInfo load_state(const std::filesystem::path& folder = {},
                            const LoadStateOptions& options = {});
  // Call it after prepare() and before training. RunStart::kResume calls load_state() if there is a checkpoint. kAnew DELETES the
  // checkpoints of the project, so that two runs do not mix. kFirst throws kInvalidArgument, on all ranks, if there are any. After a
  // restart by the supervisor the job always resumes, from memory if the newest checkpoint is there (save_state_in_memory()). Returns
  // the loaded checkpoint; its folder is empty if it was in memory.
  // Throws kInvalidArgument without a project_dir; otherwise as load_state(), except that a missing checkpoint is no error. If all
  // checkpoints are damaged, it throws kCheckpointIncomplete and names the fault of each.
  std::optional<CheckpointInfo> begin_run(RunStart start);

  // Copies the state of save_state() into memory of the launcher, where a restarted job finds it. It uses
  // no disk. The last two copies are kept, so one is always complete. Returns false, with one notice,
  // without a launcher. Throws kOutOfMemory if the node has too little memory, kUnsupported with hooks;
  // earlier copies stay. Requires: every rank calls it. ProjectConfiguration::memory_checkpoint_every
  // calls it automatically.
  bool save_state_in_memory();
  // For programs without a project; others call begin_run(). std::nullopt: there is no copy that all
  // ranks can load. Requires: every rank calls it.
  std::optional<CheckpointInfo> load_state_in_memory();

  // Whether the launcher has announced a preemption (see OnPreemption). Ranks see it at different
  // moments; agree with set_trigger() and check_trigger() before acting on it. Cost: 1 to 3 ns.
  [[nodiscard]] bool preemption_requested() const noexcept;
  // Calls save_state(), tells the launcher that this rank has saved, and ends the process with
  // preemption_exit_code. No destructor runs; functions of std::at_quick_exit() do. Throws the errors
  // of save_state(); then the process continues. Requires: every rank calls it.
  [[noreturn]] void save_state_and_exit();

  // Writes a model's weights for other programs, from the main process. Every rank must call it, and throws the main process's error.
  template <typename Handle>
  void save_model(const Prepared<Handle>& model,
                  const std::filesystem::path& folder,
                  const SaveModelOptions& options = {}) const {
    save_weights(*model.runtime(), folder, options);
  }
  // Writes an object into a file, like accel::save() (accel/saved_object.h): from the main process, or with
  // ProjectConfiguration::save_on_each_node from the first process of every node.
  void save(const c10::IValue& object,
            const std::filesystem::path& file,
            const SaveObjectOptions& options) const;
  void save(const c10::IValue& object, const std::filesystem::path& file) const;
  // The state of a prepared model, by default whole on rank 0, as in Accelerate, with any state_dict_type(). See
  // accel/state_view.h. Throws kPeerLost, kProcessGroup. Requires: every rank calls it.
  template <typename Handle>
  [[nodiscard]] StateView get_state_dict(const Prepared<Handle>& model,
                                         StateDictType type = StateDictType::kFull) const {
    return model_state(*model.runtime(), type);
  }
  // unwrap = false: with the names of Python's wrapped module, which begin with "module." for copies on several ranks (DDP).
  template <typename Handle>
  [[nodiscard]] StateView get_state_dict(const Prepared<Handle>& model,
                                         const StateDictOptions& options) const {
    StateView state = model_state(*model.runtime(), options.type);
    return options.unwrap ? std::move(state) : wrapped(*model.runtime(), std::move(state));
  }
  // The same for an optimizer, by the names of the prepared models. Also throws kUnsupported for an optimizer that cannot be saved.
  [[nodiscard]] StateView get_optimizer_state_dict(const AcceleratedOptimizer& optimizer,
                                                   StateDictType type = StateDictType::kFull) const;
  // Which ranks write the files of save_state(); see FullyShardedDataParallelPlugin. FULL without FSDP.
  [[nodiscard]] StateDictType state_dict_type() const noexcept;
  // Takes a value, or its name in upper or lower case; the same on all ranks. Throws kInvalidArgument for an unknown name, for
  // LOCAL_STATE_DICT of FSDP version 2, and without FSDP for all but FULL_STATE_DICT.
  void set_state_dict_type(StateDictType type);
  void set_state_dict_type(std::string_view name) {
    set_state_dict_type(parse<StateDictType>(name));
  }
  // The objects that save_state() saves, borrowed from the Accelerator. With sharded models every rank must call it, and loading into
  // these objects does not reach their optimizers: use load_state().
  [[nodiscard]] CheckpointObjects checkpoint_objects() const;

  // --- experiment trackers (accel/tracking.h), on the main process; on other ranks these calls do nothing

  // Starts the trackers of AcceleratorOptions::log_with, each with its own dictionary of init_kwargs, and gives them the
  // configuration, unless it is empty. Throws kInvalidArgument for options that a tracker does not have, kFileIo, and the errors of
  // your own trackers.
  void init_trackers(const std::string& project_name,
                     const TrackerDict& config = {},
                     const TrackerDict& init_kwargs = {});
  // Gives the values to all trackers, each with its own dictionary of log_kwargs. Cost: tens of microseconds for each tracker of
  // libaccel; a tensor among the values is copied to the host on the rank that makes the dictionary.
  void log(const TrackerDict& values,
           std::optional<std::int64_t> step = std::nullopt,
           const TrackerDict& log_kwargs = {});
  // Logs pictures to the trackers that support them; a warning names the others once.
  void log_images(const TrackerImages& values,
                  std::optional<std::int64_t> step = std::nullopt,
                  const TrackerDict& log_kwargs = {});
  // Returns a tracker by its name. Before init_trackers(), and on other ranks, that tracker does nothing. Throws kInvalidArgument for
  // an unknown name.
  [[nodiscard]] GeneralTracker& get_tracker(std::string_view name) const;
  // The same as its own class (unwrap=True of Accelerate); nullptr before init_trackers(), on other ranks, and for another class.
  template <typename Tracker>
  [[nodiscard]] Tracker* get_tracker(std::string_view name) const {
    return dynamic_cast<Tracker*>(&get_tracker(name));
  }

  // --- profiler (accel/profiler.h, which a program that calls these includes)

  // Records the cost of the operators of this process until the returned object ends. Without arguments it uses
  // AcceleratorOptions::profile. Throws kInvalidArgument for an invalid activity or schedule, and while this process has another
  // profiler.
  [[nodiscard]] Profiler profile() const;
  [[nodiscard]] Profiler profile(const ProfileKwargs& kwargs) const;

  // The last call of a training program. It finishes the trackers, waits for a running save and, over several nodes, for all ranks of a
  // sharded model, and leaves the process group. Throws their errors; it leaves the group in any case. Requires: every rank calls it.
  void end_training();

 private:
  friend class detail::FsdpFiles;  // accel/fsdp_checkpoint.h
  struct Impl;

  template <typename T>
  decltype(auto) prepare_one(T&& object, std::optional<bool> device_placement);

  // The runtime of a module, made at the first call.
  std::shared_ptr<detail::ModelRuntime> runtime_for(std::shared_ptr<torch::nn::Module> module,
                                                    const PrepareModelOptions& options);
  AcceleratedScheduler add_scheduler(std::shared_ptr<Scheduler> scheduler);
  AcceleratedScheduler add_scheduler(const DummyScheduler& scheduler);
  void add_custom_object(Stateful& object);
  // Gives optimizers of sharded models their pieces, in either order of preparation.
  void match_optimizers();
  // The optimizer has moved from `from` to `to`; its schedulers follow.
  void note_move(const void* from, std::shared_ptr<torch::optim::Optimizer> to);
  void match_schedulers();
  bool next_batch_syncs();
  // The number of rows of the gathered batch that are samples; nullopt: all of them.
  [[nodiscard]] std::optional<std::int64_t> samples_of_last_batch() const;
  // The same for this rank's part, if the number for all ranks is unknown.
  [[nodiscard]] std::optional<std::int64_t> own_samples_of_last_batch() const;
  void check_device_placement(const PrepareOptions& options, std::size_t num_objects) const;
  // device_placement: not set: the Accelerator's.
  [[nodiscard]] ShardOptions shard_options(
      std::optional<bool> device_placement = std::nullopt) const;
  [[nodiscard]] JoinScope join(const std::vector<const detail::ModelRuntime*>& models,
                               const JoinOptions& options) const;
  [[nodiscard]] ShardOptions micro_batch_options() const;
  void add_data_loader(std::shared_ptr<DataLoaderBase> loader);
  [[nodiscard]] StateView model_state(const detail::ModelRuntime& model, StateDictType type) const;
  [[nodiscard]] StateView wrapped(const detail::ModelRuntime& model, StateView state) const;
  void save_weights(const detail::ModelRuntime& model,
                    const std::filesystem::path& folder,
                    const SaveModelOptions& options) const;

  std::unique_ptr<Impl> impl_;
};

template <typename T>
decltype(auto) Accelerator::prepare_one(T&& object, std::optional<bool> device_placement) {
  using Passed = std::remove_cvref_t<T>;
  using Object = detail::ObjectOf<T>;
  if constexpr (detail::is_prepared<Passed> || std::is_same_v<Passed, AcceleratedOptimizer> ||
                std::is_same_v<Passed, AcceleratedScheduler>) {
    return Passed(object);
  } else if constexpr (std::is_same_v<Passed, DummyOptim>) {
    return prepare_optimizer(object);
  } else if constexpr (std::is_same_v<Passed, DummyScheduler>) {
    return add_scheduler(object);
  } else if constexpr (detail::ModuleHandle<Passed>) {
    return prepare_model(object, {.device_placement = device_placement});
  } else if constexpr (detail::DataLoaderHandle<Passed>) {
    return this->prepare_data_loader(
        object, PrepareDataLoaderOptions{.device_placement = device_placement});
  } else if constexpr (detail::OptimizerObject<Object>) {
    const void* const from = &object;
    auto shared = detail::share(std::forward<T>(object));
    if constexpr (!std::is_lvalue_reference_v<T>) note_move(from, shared);
    return prepare_optimizer(std::move(shared));
  } else if constexpr (std::is_convertible_v<Object*, Scheduler*>) {
    return add_scheduler(detail::share(std::forward<T>(object)));
  } else if constexpr (detail::SchedulerObject<Object>) {
    return add_scheduler(
        std::make_shared<detail::SchedulerAdapter<Object>>(detail::share(std::forward<T>(object))));
  } else {
    static_assert(
        !requires(Object & other) { other.step(); },
        "prepare() wants a module, an optimizer, a data loader, or a scheduler: a class that "
        "derives from accel::Stateful and has step()");
    return static_cast<std::conditional_t<std::is_lvalue_reference_v<T>, T, Passed>>(
        std::forward<T>(object));
  }
}

}  // namespace accel

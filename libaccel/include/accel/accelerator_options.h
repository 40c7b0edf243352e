// AcceleratorOptions: all options of an Accelerator, with the names of HF Accelerate.
//
//   accel::Accelerator accelerator({.mixed_precision = "bf16", .gradient_accumulation_steps = 4});
//
// Options that are not set come from the environment that accel-launch sets, then from the defaults below.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/communication_hook.h>
#include <accel/deepspeed.h>
#include <accel/fp8_recipe.h>
#include <accel/fsdp.h>
#include <accel/log_with.h>
#include <accel/nan_watch.h>
#include <accel/parallelism_config.h>
#include <accel/precision.h>
#include <accel/profile_kwargs.h>
#include <accel/state.h>
#include <accel/types.h>

namespace accel {

// A precision by value or by text ("no", "bf16", "fp16").
class MixedPrecision {
 public:
  MixedPrecision(PrecisionType value) : value_(value) {}                    // NOLINT: implicit
  MixedPrecision(const char* text) : value_(parse<PrecisionType>(text)) {}  // NOLINT
  MixedPrecision(const std::string& text) : value_(parse<PrecisionType>(text)) {}  // NOLINT
  operator PrecisionType() const noexcept { return value_; }                       // NOLINT

 private:
  PrecisionType value_;
};

// How copies of a model exchange gradients (libaccel/engine/gradients/ddp_reducer.h). Give the same options on all ranks; otherwise
// prepare() throws kInvalidArgument and names the option. Sizes are in MiB.
struct DistributedDataParallelKwargs {
  bool broadcast_buffers = true;  // rank 0's buffers (BatchNorm's averages) before each forward
  double bucket_cap_mb = 25.0;    // gradients reduced in one message
  bool find_unused_parameters =
      false;  // parameters may have no gradient; costs a walk over the graph
  bool gradient_as_bucket_view =
      true;                   // gradients live in the buckets: saves a copy of all gradients
  bool static_graph = false;  // the graph is the same in every step: activation checkpointing,
                              // parameters used several times
  // Replaces the average by a named hook or one of your own (accel/communication_hook.h). It needs whole gradients: a sharded model
  // refuses it, except with ZeRO-1. No effect on one process.
  DDPCommunicationHook comm_hook = DDPCommunicationHookType::kNo;
  // Rounds the input and the result of comm_hook to 16 bits: kFp16 or kBf16.
  DDPCommunicationHookType comm_wrapper = DDPCommunicationHookType::kNo;
  PowerSGDOptions comm_state_option;  // of kPowerSgd and kBatchedPowerSgd
};

struct DataLoaderConfiguration {
  bool split_batches = false;            // the loader's batch is divided over the ranks
  std::optional<bool> dispatch_batches;  // rank 0 reads and sends; default: only iterable datasets
  bool even_batches = true;              // every rank gets as many batches, repeating first samples
  bool use_seedable_sampler = false;     // the order depends on the seed and the epoch alone
  std::optional<std::int64_t> data_seed;  // of the seedable sampler; default: the global seed
  bool non_blocking = false;  // copies of batches to a device do not block; wants pinned memory
  bool use_stateful_dataloader = false;  // every loader of accel is one: changes nothing
};

struct AutocastKwargs {
  bool enabled = true;
  bool cache_enabled = true;
};

struct ProjectConfiguration {
  std::string project_dir;                   // empty: none; a relative one is resolved at once
  std::string logging_dir;                   // of trackers; empty: project_dir
  bool automatic_checkpoint_naming = false;  // save_state() without a folder numbers its own
  std::optional<int> total_limit;            // checkpoints kept, 1 or more; older ones go
  int iteration = 0;                         // the number of the next checkpoint
  bool save_on_each_node = false;            // every node has its own disk
  // After this number of optimizer steps the state is copied into memory of the launcher, and a restarted
  // job resumes from it (Accelerator::save_state_in_memory()). 0: never. Needs prepared data loaders,
  // because it acts at the end of a batch. Costs twice the state in memory on each node.
  int memory_checkpoint_every = 0;
};

// How a run begins in a project that may contain checkpoints of an earlier run.
enum class RunStart {
  kFirst,  // there must be no checkpoint
  kAnew,   // earlier checkpoints are DELETED
  kResume,  // from the newest complete checkpoint; from scratch if there is none. If all are damaged, an error
};

// What this program does before its job is preempted: at SIGTERM, SIGUSR1 or SIGHUP to accel-launch.
enum class OnPreemption {
  kStop,    // it gets the signal at once
  kNotify,  // no signal until 5 s before the grace ends; the program calls preemption_requested()
  kSaveAndExit,  // like kNotify; after the next step of the optimizer all ranks save and end
};

struct AcceleratorOptions {
  bool device_placement = true;  // prepare() moves models to the device, and loaders their batches
  std::optional<MixedPrecision> mixed_precision;  // default: ACCELERATE_MIXED_PRECISION, else no
  // Batches per optimizer step. ACCELERATE_GRADIENT_ACCUMULATION_STEPS overrides it, as in Accelerate.
  int gradient_accumulation_steps = 1;
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin;  // instead of the number
  // The same bits of losses and weights on any number of ranks. gradient_accumulation_steps then counts the micro-batches of a step
  // over ALL ranks. Each rank has a contiguous range of them (accel/micro_batches.h), and the mean is summed in a fixed order.
  // accumulate() seeds the generators for each micro-batch. Default: ACCEL_REPRODUCIBLE, else no. See docs/guides/reproducibility.md.
  std::optional<bool> reproducible;
  bool cpu = false;  // leave GPUs alone
  DataLoaderConfiguration dataloader_config;
  std::vector<RNGType> rng_types = {
      RNGType::kGenerator};  // synchronized when a loader starts a pass
  LogWith log_with;          // experiment trackers: names, or objects (accel/tracking.h)
  std::string project_dir;   // short for project_config.project_dir
  ProjectConfiguration project_config;
  // false: only your own calls step the scheduler, once for each call (at the end of an epoch, say).
  bool step_scheduler_with_optimizer = true;
  DistributedDataParallelKwargs ddp;
  // Shards models over the ranks instead of copying them. Default: ACCELERATE_USE_FSDP with the FSDP_* environment, otherwise none.
  std::optional<FullyShardedDataParallelPlugin> fsdp_plugin;
  // The same by stages of ZeRO; excludes fsdp_plugin. Default: ACCELERATE_USE_DEEPSPEED, else none.
  std::optional<DeepSpeedPlugin> deepspeed_plugin;
  // Replaces deepspeed_plugin by several with different names, for models that are prepared in different ways
  // (Accelerator::select_deepspeed_plugin()).
  std::vector<std::pair<std::string, DeepSpeedPlugin>> deepspeed_plugins;
  // The number of copies of a model, and of processes that divide a copy. With DeepSpeed it divides nothing. Default: the
  // PARALLELISM_CONFIG_* variables with ACCELERATE_USE_PARALLELISM_CONFIG, else none.
  std::optional<ParallelismConfig> parallelism_config;
  GradScalerKwargs grad_scaler;
  AutocastKwargs autocast;
  std::optional<Fp8Recipe> fp8_recipe;  // of Python workers: one that is set is refused
  InitProcessGroupKwargs init_process_group;
  ProfileKwargs profile;  // of Accelerator::profile() without arguments
  // Checks for gradients that are not finite, and for jumps of the loss. Default: off.
  std::optional<NanWatch> nan_watch;
  // kSaveAndExit needs project_config.automatic_checkpoint_naming, and prepared data loaders, because it acts
  // at the end of a batch. Cost on one node: reading a word in shared memory. Over several nodes, and with Gloo:
  // one all-reduce of 8 bytes per step, in parallel with the next step.
  OnPreemption on_preemption = OnPreemption::kStop;
  int preemption_exit_code = 85;  // of this process, after it has saved; 1 to 255
};

// Options of Accelerator::prepare().
struct PrepareOptions {
  // One value for each object, in the same order: whether a model, or the batches of a loader, are moved to the device. It replaces
  // AcceleratorOptions::device_placement. States of an optimizer are on the device of its parameters, and a scheduler has none.
  std::optional<std::vector<bool>> device_placement;
};

// Options of Accelerator::prepare_data_loader().
struct PrepareDataLoaderOptions {
  std::optional<bool>
      device_placement;  // of its batches; default: AcceleratorOptions::device_placement
};

// Options of Accelerator::prepare_model().
struct PrepareModelOptions {
  std::optional<bool> device_placement;  // default: AcceleratorOptions::device_placement
  // For inference and evaluation: only mixed precision applies. The model is neither copied nor sharded, its forward waits for no other
  // rank, and each rank keeps its own BatchNorm averages. backward() through it averages nothing.
  bool evaluation_mode = false;
};

}  // namespace accel

// Types: the enumerations of the public API, each with its text form both ways.
//
// The texts are the same as in HF Accelerate, so that environment variables, YAML files and printed
// states mean the same in both: to_string(PrecisionType::kBf16) == "bf16",
// parse<PrecisionType>("bf16"). Some values name devices and engines that this library does not
// support. With them a text of another program can be read; a function that would need the device
// or the engine throws kUnsupported.
//
// Threads:  pure functions.
#pragma once

#include <span>
#include <string_view>

#include <accel/export.h>

namespace accel {

enum class DistributedType {
  kNo,
  kMultiCpu,
  kMultiGpu,
  kMultiNpu,
  kMultiMlu,
  kMultiSdaa,
  kMultiMusa,
  kMultiXpu,
  kDeepspeed,
  kFsdp,
  kXla,
  kMegatronLm,
  kMultiHpu,
  kMultiNeuron,
};

enum class ComputeEnvironment { kLocalMachine, kAmazonSagemaker };

enum class PrecisionType { kNo, kFp8, kFp16, kBf16 };

// Which random generator to synchronise or save. kGenerator: a generator that the caller passes.
enum class RNGType {
  kTorch,
  kCuda,
  kMlu,
  kSdaa,
  kMusa,
  kNpu,
  kXla,
  kXpu,
  kHpu,
  kNeuron,
  kGenerator,
};

// How reduce() combines the values of the ranks; kNone: not at all, each rank keeps its own values.
enum class Reduction { kMean, kSum, kMax, kNone };

// How FSDP shards the state of training; docs/guides/sharding.md. PyTorch's and Accelerate's numbers are higher by one.
enum class ShardingStrategy { kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2 };

// How copies of a model compress the gradients that they exchange; accel/communication_hook.h.
enum class DDPCommunicationHookType { kNo, kFp16, kBf16, kPowerSgd, kBatchedPowerSgd };

// When the next unit of the backward is fetched: before or after the gradients of the current unit, or not ahead.
enum class BackwardPrefetch { kBackwardPre, kBackwardPost, kNoPrefetch };

// Which parameters FSDP gathers together.
enum class AutoWrapPolicy { kTransformerBasedWrap, kSizeBasedWrap, kNoWrap };

enum class LoggerType {
  kAll,
  kAim,
  kTensorboard,
  kWandb,
  kTrackio,
  kCometMl,
  kMlflow,
  kClearml,
  kDvclive,
  kSwanlab,
};

// For Python workers: the backend of torch.compile, and how SageMaker divides a job. libaccel compiles and divides nothing by
// them; they exist to read and to write environments and files.
enum class DynamoBackend {
  kNo,
  kEager,
  kAotEager,
  kInductor,
  kAotTsNvfuser,
  kNvprimsNvfuser,
  kCudagraphs,
  kOfi,
  kFx2Trt,
  kOnnxrt,
  kTensorrt,
  kAotTorchxlaTraceOnce,
  kTorchxlaTraceOnce,
  kTvm,
  kHpuBackend,
  kNeuron,
};
enum class SageMakerDistributedType { kNo, kDataParallel, kModelParallel };

enum class LogLevel { kDebug, kInfo, kWarning, kError, kCritical };

// One value of E and its text.
template <typename E>
struct EnumText {
  E value;
  std::string_view text;
};

// Every value of E, in the order of the enumeration. Defined for the enumerations above.
template <typename E>
std::span<const EnumText<E>> enum_texts() noexcept;

// "MULTI_CPU", "bf16", ... Never empty.
template <typename E>
std::string_view to_string(E value) noexcept requires requires {
  enum_texts<E>();
}
{ return enum_texts<E>()[static_cast<std::size_t>(value)].text; }

// The value with this text; case does not matter.
// Errors  throws kInvalidArgument with a list of the valid texts.
template <typename E>
E parse(std::string_view text);

}  // namespace accel

// The texts of the public enumerations.

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

#include <accel/custom_dtype.h>
#include <accel/error.h>
#include <accel/fp8_recipe.h>
#include <accel/fsdp.h>
#include <accel/state_dict_type.h>
#include <accel/types.h>

#include "runtime/text/letter_case.h"

namespace accel {
namespace {

template <typename E>
struct Texts;

template <>
struct Texts<DistributedType> {
  static constexpr std::string_view kKind = "distributed type";
  static constexpr EnumText<DistributedType> kRows[] = {
      {DistributedType::kNo, "NO"},
      {DistributedType::kMultiCpu, "MULTI_CPU"},
      {DistributedType::kMultiGpu, "MULTI_GPU"},
      {DistributedType::kMultiNpu, "MULTI_NPU"},
      {DistributedType::kMultiMlu, "MULTI_MLU"},
      {DistributedType::kMultiSdaa, "MULTI_SDAA"},
      {DistributedType::kMultiMusa, "MULTI_MUSA"},
      {DistributedType::kMultiXpu, "MULTI_XPU"},
      {DistributedType::kDeepspeed, "DEEPSPEED"},
      {DistributedType::kFsdp, "FSDP"},
      {DistributedType::kXla, "XLA"},
      {DistributedType::kMegatronLm, "MEGATRON_LM"},
      {DistributedType::kMultiHpu, "MULTI_HPU"},
      {DistributedType::kMultiNeuron, "MULTI_NEURON"},
  };
};

template <>
struct Texts<ComputeEnvironment> {
  static constexpr std::string_view kKind = "compute environment";
  static constexpr EnumText<ComputeEnvironment> kRows[] = {
      {ComputeEnvironment::kLocalMachine, "LOCAL_MACHINE"},
      {ComputeEnvironment::kAmazonSagemaker, "AMAZON_SAGEMAKER"},
  };
};

template <>
struct Texts<PrecisionType> {
  static constexpr std::string_view kKind = "precision";
  static constexpr EnumText<PrecisionType> kRows[] = {
      {PrecisionType::kNo, "no"},
      {PrecisionType::kFp8, "fp8"},
      {PrecisionType::kFp16, "fp16"},
      {PrecisionType::kBf16, "bf16"},
  };
};

template <>
struct Texts<FP8BackendType> {
  static constexpr std::string_view kKind = "backend of fp8";
  static constexpr EnumText<FP8BackendType> kRows[] = {
      {FP8BackendType::kNo, "NO"},
      {FP8BackendType::kTe, "TE"},
      {FP8BackendType::kMsamp, "MSAMP"},
      {FP8BackendType::kAo, "AO"},
  };
};

template <>
struct Texts<CustomDtype> {
  static constexpr std::string_view kKind = "type of numbers";
  static constexpr EnumText<CustomDtype> kRows[] = {
      {CustomDtype::kFp8, "fp8"},
      {CustomDtype::kInt4, "int4"},
      {CustomDtype::kInt2, "int2"},
  };
};

template <>
struct Texts<RNGType> {
  static constexpr std::string_view kKind = "random generator";
  static constexpr EnumText<RNGType> kRows[] = {
      {RNGType::kTorch, "torch"},
      {RNGType::kCuda, "cuda"},
      {RNGType::kMlu, "mlu"},
      {RNGType::kSdaa, "sdaa"},
      {RNGType::kMusa, "musa"},
      {RNGType::kNpu, "npu"},
      {RNGType::kXla, "xla"},
      {RNGType::kXpu, "xpu"},
      {RNGType::kHpu, "hpu"},
      {RNGType::kNeuron, "neuron"},
      {RNGType::kGenerator, "generator"},
  };
};

template <>
struct Texts<DDPCommunicationHookType> {
  static constexpr std::string_view kKind = "communication hook";
  static constexpr EnumText<DDPCommunicationHookType> kRows[] = {
      {DDPCommunicationHookType::kNo, "no"},
      {DDPCommunicationHookType::kFp16, "fp16"},
      {DDPCommunicationHookType::kBf16, "bf16"},
      {DDPCommunicationHookType::kPowerSgd, "power_sgd"},
      {DDPCommunicationHookType::kBatchedPowerSgd, "batched_power_sgd"},
  };
};

template <>
struct Texts<Reduction> {
  static constexpr std::string_view kKind = "reduction";
  static constexpr EnumText<Reduction> kRows[] = {
      {Reduction::kMean, "mean"},
      {Reduction::kSum, "sum"},
      {Reduction::kMax, "max"},
      {Reduction::kNone, "none"},
  };
};

template <>
struct Texts<ShardingStrategy> {
  static constexpr std::string_view kKind = "sharding strategy";
  static constexpr EnumText<ShardingStrategy> kRows[] = {
      {ShardingStrategy::kFullShard, "FULL_SHARD"},
      {ShardingStrategy::kShardGradOp, "SHARD_GRAD_OP"},
      {ShardingStrategy::kNoShard, "NO_SHARD"},
      {ShardingStrategy::kHybridShard, "HYBRID_SHARD"},
      {ShardingStrategy::kHybridShardZero2, "HYBRID_SHARD_ZERO2"},
  };
};

template <>
struct Texts<StateDictType> {
  static constexpr std::string_view kKind = "state dict type";
  static constexpr EnumText<StateDictType> kRows[] = {
      {StateDictType::kFull, "FULL_STATE_DICT"},
      {StateDictType::kLocal, "LOCAL_STATE_DICT"},
      {StateDictType::kSharded, "SHARDED_STATE_DICT"},
  };
};

template <>
struct Texts<BackwardPrefetch> {
  static constexpr std::string_view kKind = "backward prefetch";
  static constexpr EnumText<BackwardPrefetch> kRows[] = {
      {BackwardPrefetch::kBackwardPre, "BACKWARD_PRE"},
      {BackwardPrefetch::kBackwardPost, "BACKWARD_POST"},
      {BackwardPrefetch::kNoPrefetch, "NO_PREFETCH"},
  };
};

template <>
struct Texts<AutoWrapPolicy> {
  static constexpr std::string_view kKind = "auto wrap policy";
  static constexpr EnumText<AutoWrapPolicy> kRows[] = {
      {AutoWrapPolicy::kTransformerBasedWrap, "TRANSFORMER_BASED_WRAP"},
      {AutoWrapPolicy::kSizeBasedWrap, "SIZE_BASED_WRAP"},
      {AutoWrapPolicy::kNoWrap, "NO_WRAP"},
  };
};

template <>
struct Texts<RecomputeGranularity> {
  static constexpr std::string_view kKind = "granularity of recomputation";
  static constexpr EnumText<RecomputeGranularity> kRows[] = {
      {RecomputeGranularity::kFull, "full"},
      {RecomputeGranularity::kSelective, "selective"},
  };
};

template <>
struct Texts<LoggerType> {
  static constexpr std::string_view kKind = "tracker";
  static constexpr EnumText<LoggerType> kRows[] = {
      {LoggerType::kAll, "all"},
      {LoggerType::kAim, "aim"},
      {LoggerType::kTensorboard, "tensorboard"},
      {LoggerType::kWandb, "wandb"},
      {LoggerType::kTrackio, "trackio"},
      {LoggerType::kCometMl, "comet_ml"},
      {LoggerType::kMlflow, "mlflow"},
      {LoggerType::kClearml, "clearml"},
      {LoggerType::kDvclive, "dvclive"},
      {LoggerType::kSwanlab, "swanlab"},
  };
};

template <>
struct Texts<DynamoBackend> {
  static constexpr std::string_view kKind = "backend of torch.compile";
  static constexpr EnumText<DynamoBackend> kRows[] = {
      {DynamoBackend::kNo, "NO"},
      {DynamoBackend::kEager, "EAGER"},
      {DynamoBackend::kAotEager, "AOT_EAGER"},
      {DynamoBackend::kInductor, "INDUCTOR"},
      {DynamoBackend::kAotTsNvfuser, "AOT_TS_NVFUSER"},
      {DynamoBackend::kNvprimsNvfuser, "NVPRIMS_NVFUSER"},
      {DynamoBackend::kCudagraphs, "CUDAGRAPHS"},
      {DynamoBackend::kOfi, "OFI"},
      {DynamoBackend::kFx2Trt, "FX2TRT"},
      {DynamoBackend::kOnnxrt, "ONNXRT"},
      {DynamoBackend::kTensorrt, "TENSORRT"},
      {DynamoBackend::kAotTorchxlaTraceOnce, "AOT_TORCHXLA_TRACE_ONCE"},
      {DynamoBackend::kTorchxlaTraceOnce, "TORCHXLA_TRACE_ONCE"},
      {DynamoBackend::kTvm, "TVM"},
      {DynamoBackend::kHpuBackend, "HPU_BACKEND"},
      {DynamoBackend::kNeuron, "NEURON"},
  };
};

template <>
struct Texts<SageMakerDistributedType> {
  static constexpr std::string_view kKind = "distributed type of SageMaker";
  static constexpr EnumText<SageMakerDistributedType> kRows[] = {
      {SageMakerDistributedType::kNo, "NO"},
      {SageMakerDistributedType::kDataParallel, "DATA_PARALLEL"},
      {SageMakerDistributedType::kModelParallel, "MODEL_PARALLEL"},
  };
};

template <>
struct Texts<LogLevel> {
  static constexpr std::string_view kKind = "log level";
  static constexpr EnumText<LogLevel> kRows[] = {
      {LogLevel::kDebug, "DEBUG"},
      {LogLevel::kInfo, "INFO"},
      {LogLevel::kWarning, "WARNING"},
      {LogLevel::kError, "ERROR"},
      {LogLevel::kCritical, "CRITICAL"},
  };
};

// to_string() takes the value for an index.
template <typename E>
constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < std::size(Texts<E>::kRows); ++i) {
    if (static_cast<std::size_t>(Texts<E>::kRows[i].value) != i) return false;
  }
  return true;
}

}  // namespace

template <typename E>
std::span<const EnumText<E>> enum_texts() noexcept {
  static_assert(rows_are_in_order<E>());
  return Texts<E>::kRows;
}

template <typename E>
E parse(std::string_view text) {
  std::string known;
  for (const auto& entry : enum_texts<E>()) {
    if (is_equal_but_for_case(entry.text, text)) return entry.value;
    if (!known.empty()) known += ", ";
    known += entry.text;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "'" + std::string(text) + "' is no " + std::string(Texts<E>::kKind) +
                  "; expected one of " + known);
}

template ACCEL_EXPORT std::span<const EnumText<DistributedType>>
enum_texts<DistributedType>() noexcept;
template ACCEL_EXPORT DistributedType parse<DistributedType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<ComputeEnvironment>>
enum_texts<ComputeEnvironment>() noexcept;
template ACCEL_EXPORT ComputeEnvironment parse<ComputeEnvironment>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<PrecisionType>> enum_texts<PrecisionType>() noexcept;
template ACCEL_EXPORT PrecisionType parse<PrecisionType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<FP8BackendType>>
enum_texts<FP8BackendType>() noexcept;
template ACCEL_EXPORT FP8BackendType parse<FP8BackendType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<CustomDtype>> enum_texts<CustomDtype>() noexcept;
template ACCEL_EXPORT CustomDtype parse<CustomDtype>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<RNGType>> enum_texts<RNGType>() noexcept;
template ACCEL_EXPORT RNGType parse<RNGType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<Reduction>> enum_texts<Reduction>() noexcept;
template ACCEL_EXPORT Reduction parse<Reduction>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<DDPCommunicationHookType>>
enum_texts<DDPCommunicationHookType>() noexcept;
template ACCEL_EXPORT DDPCommunicationHookType parse<DDPCommunicationHookType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<ShardingStrategy>>
enum_texts<ShardingStrategy>() noexcept;
template ACCEL_EXPORT ShardingStrategy parse<ShardingStrategy>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<StateDictType>> enum_texts<StateDictType>() noexcept;
template ACCEL_EXPORT StateDictType parse<StateDictType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<BackwardPrefetch>>
enum_texts<BackwardPrefetch>() noexcept;
template ACCEL_EXPORT BackwardPrefetch parse<BackwardPrefetch>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<AutoWrapPolicy>>
enum_texts<AutoWrapPolicy>() noexcept;
template ACCEL_EXPORT AutoWrapPolicy parse<AutoWrapPolicy>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<RecomputeGranularity>>
enum_texts<RecomputeGranularity>() noexcept;
template ACCEL_EXPORT RecomputeGranularity parse<RecomputeGranularity>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<DynamoBackend>> enum_texts<DynamoBackend>() noexcept;
template ACCEL_EXPORT DynamoBackend parse<DynamoBackend>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<SageMakerDistributedType>>
enum_texts<SageMakerDistributedType>() noexcept;
template ACCEL_EXPORT SageMakerDistributedType parse<SageMakerDistributedType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<LoggerType>> enum_texts<LoggerType>() noexcept;
template ACCEL_EXPORT LoggerType parse<LoggerType>(std::string_view);
template ACCEL_EXPORT std::span<const EnumText<LogLevel>> enum_texts<LogLevel>() noexcept;
template ACCEL_EXPORT LogLevel parse<LogLevel>(std::string_view);

}  // namespace accel

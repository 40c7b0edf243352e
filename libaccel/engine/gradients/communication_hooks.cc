#include "libaccel/engine/gradients/communication_hooks.h"

#include <string>
#include <utility>

#include <accel/error.h>

#include "libaccel/engine/gradients/power_sgd.h"
#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace {

constexpr const char* kHookOperation = "exchanging gradients by a hook";

at::Tensor compressed_average(GradientBucket& bucket,
                              CommunicationGroup& group,
                              at::ScalarType dtype) {
  at::Tensor compressed = bucket.buffer.to(dtype).div_(group.size());
  group.all_reduce_(compressed);
  return bucket.buffer.copy_(compressed);
}

CommunicationHook compress_wrapper(CommunicationHook hook, at::ScalarType dtype) {
  return [hook = std::move(hook), dtype](GradientBucket& bucket, CommunicationGroup& group) {
    bucket.buffer = bucket.buffer.to(dtype);
    const at::Tensor result = hook(bucket, group);
    return bucket.buffer.copy_(result);
  };
}

ExchangeHook power_sgd_hook(const PowerSGDOptions& options, PowerSgd::Form form) {
  auto state = std::make_shared<PowerSgd>(options, form);
  return {.call = [state](GradientBucket& bucket,
                          CommunicationGroup& group) { return state->exchange(bucket, group); },
          .state = state};
}

ExchangeHook hook_named(DDPCommunicationHookType type, const PowerSGDOptions& options) {
  switch (type) {
    case DDPCommunicationHookType::kNo:
      return {};
    case DDPCommunicationHookType::kFp16:
      return {fp16_compress_hook, nullptr};
    case DDPCommunicationHookType::kBf16:
      return {bf16_compress_hook, nullptr};
    case DDPCommunicationHookType::kPowerSgd:
      return power_sgd_hook(options, PowerSgd::Form::kByMatrix);
    case DDPCommunicationHookType::kBatchedPowerSgd:
      return power_sgd_hook(options, PowerSgd::Form::kByBucket);
  }
  return {};
}

CommunicationHook wrapped(CommunicationHook hook, DDPCommunicationHookType wrapper) {
  switch (wrapper) {
    case DDPCommunicationHookType::kNo:
      return hook;
    case DDPCommunicationHookType::kFp16:
      return fp16_compress_wrapper(std::move(hook));
    case DDPCommunicationHookType::kBf16:
      return bf16_compress_wrapper(std::move(hook));
    default:
      throw Error(
          ErrorCode::kInvalidArgument,
          "ddp.comm_wrapper is " + std::string(to_string(wrapper)) + ", which rounds no numbers",
          "set it to kFp16 or kBf16, and comm_hook to what it is to wrap");
  }
}

bool has_hook(const DistributedDataParallelKwargs& options) {
  const auto* const type = std::get_if<DDPCommunicationHookType>(&options.comm_hook);
  return type == nullptr || *type != DDPCommunicationHookType::kNo;
}

bool compresses(const DistributedDataParallelKwargs& options) {
  return options.comm_wrapper != DDPCommunicationHookType::kNo ||
         (has_hook(options) && std::holds_alternative<DDPCommunicationHookType>(options.comm_hook));
}

}  // namespace

std::vector<at::Tensor> GradientBucket::gradients() const {
  std::vector<at::Tensor> views;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    views.push_back(buffer.as_strided(
        parameters[i].sizes(), parameters[i].strides(), buffer.storage_offset() + offsets[i]));
  }
  return views;
}

CommunicationGroup::CommunicationGroup(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)) {}

int CommunicationGroup::rank() const noexcept {
  return group_->rank();
}

int CommunicationGroup::size() const noexcept {
  return group_->size();
}

void CommunicationGroup::all_reduce_(at::Tensor values, Reduction reduction) {
  group_->all_reduce_(values, reduction, kHookOperation);
}

at::Tensor CommunicationGroup::all_gather(const at::Tensor& values) {
  return group_->all_gather(values.contiguous(), kHookOperation);
}

void CommunicationGroup::broadcast_(at::Tensor values, int from_process) {
  group_->broadcast_(values, from_process, kHookOperation);
}

at::Tensor allreduce_hook(GradientBucket& bucket, CommunicationGroup& group) {
  group.all_reduce_(bucket.buffer.div_(group.size()));
  return bucket.buffer;
}

at::Tensor fp16_compress_hook(GradientBucket& bucket, CommunicationGroup& group) {
  return compressed_average(bucket, group, at::kHalf);
}

at::Tensor bf16_compress_hook(GradientBucket& bucket, CommunicationGroup& group) {
  return compressed_average(bucket, group, at::kBFloat16);
}

CommunicationHook fp16_compress_wrapper(CommunicationHook hook) {
  return compress_wrapper(std::move(hook), at::kHalf);
}

CommunicationHook bf16_compress_wrapper(CommunicationHook hook) {
  return compress_wrapper(std::move(hook), at::kBFloat16);
}

ExchangeHook exchange_hook(const DistributedDataParallelKwargs& options) {
  const auto* const own = std::get_if<CommunicationHook>(&options.comm_hook);
  ExchangeHook hook = own != nullptr
                          ? ExchangeHook{*own, nullptr}
                          : hook_named(std::get<DDPCommunicationHookType>(options.comm_hook),
                                       options.comm_state_option);
  if (own != nullptr && !hook.call) {
    throw Error(ErrorCode::kInvalidArgument,
                "ddp.comm_hook is an empty function",
                "leave it out, or give one that exchanges a bucket");
  }
  if (options.comm_wrapper == DDPCommunicationHookType::kNo) return hook;
  if (!hook.call) {
    throw Error(ErrorCode::kInvalidArgument,
                "ddp.comm_wrapper is " + std::string(to_string(options.comm_wrapper)) +
                    ", and there is no ddp.comm_hook to wrap",
                "set comm_hook: kFp16 and kBf16 compress by themselves");
  }
  hook.call = wrapped(std::move(hook.call), options.comm_wrapper);
  return hook;
}

void refuse_hooked_gradients(const DistributedDataParallelKwargs& options,
                             const std::vector<NamedParameter>& parameters) {
  if (!has_hook(options)) return;
  for (const NamedParameter& parameter : parameters) {
    if (parameter.expects_sparse_gradient) {
      throw Error(ErrorCode::kUnsupported,
                  "the gradient of " + parameter.name +
                      " is sparse, which a communication hook (ddp.comm_hook) does not get",
                  "construct the embedding with sparse(false), or leave comm_hook out");
    }
    if (parameter.tensor.is_complex() && compresses(options)) {
      throw Error(ErrorCode::kUnsupported,
                  "the gradient of " + parameter.name +
                      " is of complex numbers, which ddp.comm_hook and ddp.comm_wrapper cannot "
                      "compress",
                  "leave them out, or give a comm_hook of your own");
    }
  }
}

void refuse_hooked_shards(const DistributedDataParallelKwargs& options) {
  if (!has_hook(options) && options.comm_wrapper == DDPCommunicationHookType::kNo) return;
  throw Error(
      ErrorCode::kUnsupported,
      "ddp.comm_hook exchanges whole gradients, and this model's are divided over the ranks",
      "leave comm_hook and comm_wrapper out; for gradients of 16 bits set reduce_dtype of the "
      "plugin's mixed_precision_policy; or train copies: NO_SHARD, or ZeRO-1");
}

void run_hook(const CommunicationHook& hook, GradientBucket& bucket, CommunicationGroup& group) {
  at::Tensor gradients = bucket.buffer;
  const at::Tensor result = hook(bucket, group);
  if (!result.defined() || result.numel() != gradients.numel()) {
    throw Error(ErrorCode::kShapeMismatch,
                "the communication hook made " +
                    (result.defined() ? std::to_string(result.numel()) + " numbers"
                                      : std::string("no tensor")) +
                    " of bucket " + std::to_string(bucket.index) + ", which has " +
                    std::to_string(gradients.numel()),
                "return a tensor of the size of bucket.buffer, or that itself");
  }
  if (!result.is_same(gradients)) gradients.copy_(result.view({-1}));
}

}  // namespace accel

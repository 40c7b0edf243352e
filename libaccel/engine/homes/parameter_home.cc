#include "libaccel/engine/homes/parameter_home.h"

#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/construction/tensor_memory.h"

namespace accel::sharding {

void place_parameters(const Unit& unit,
                      const at::Tensor& flat,
                      std::vector<NamedParameter>& parameters) {
  for (const Slot& slot : unit.slots) {
    const at::Tensor& parameter = parameters[slot.parameter].tensor;
    construction::give_memory(
        parameter,
        flat.as_strided(
            parameter.sizes(), parameter.strides(), flat.storage_offset() + slot.offset));
  }
}

std::shared_ptr<pager::WritePermit> make_shared_permit() {
  return std::make_shared<pager::WritePermit>(
      pager::WritePermit::First::kWithdrawn,
      ", which the ranks share: each of them would write to the one memory",
      "change it before prepare(), by the prepared optimizer's step, or by load_state()");
}

Result<UniqueFd> make_parameter_memory(std::int64_t bytes) {
  UniqueFd memory(::memfd_create("accel-parameters", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), bytes) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Error(
        ErrorCode::kOutOfMemory,
        "no memory of " + std::to_string(bytes) + " bytes can be made: " + errno_text(errno));
  }
  return memory;
}

std::unique_ptr<ParameterHome> make_home(const std::vector<Unit>& units,
                                         std::vector<std::vector<pager::GuardLabel>> labels,
                                         const std::shared_ptr<ProcessGroup>& group,
                                         const FsdpSettings& settings,
                                         Masters masters,
                                         c10::Device device) {
  if (!device.is_cpu()) {
    const bool is_whole =
        settings.keeps_whole_gradients || settings.strategy == ShardingStrategy::kShardGradOp;
    if (is_whole) return make_private_home(units, group, masters, device);
    return make_device_home(units, std::move(labels), group, settings.paging, device);
  }
  if (!settings.parameter_folder.empty())
    return make_disk_home(units, group, settings.parameter_folder, settings.paging);
  auto shared = make_shared_home(units, std::move(labels), group);
  if (shared) return *std::move(shared);
  if (settings.strategy == ShardingStrategy::kFullShard) {
    auto remote = make_remote_home(units, group, settings.paging);
    if (!remote) throw std::move(remote).error();
    return *std::move(remote);
  }
  if (settings.strategy != ShardingStrategy::kShardGradOp) {
    throw Error(ErrorCode::kUnsupported,
                std::string(to_string(settings.strategy)) +
                    " needs ranks that share memory: " + shared.error().message(),
                "use SHARD_GRAD_OP: every rank keeps the parameters whole");
  }
  return make_private_home(units, group, masters, device);
}

}  // namespace accel::sharding

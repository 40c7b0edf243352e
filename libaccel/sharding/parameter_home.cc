#include "libaccel/sharding/parameter_home.h"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/construction/tensor_memory.h"

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

}  // namespace accel::sharding

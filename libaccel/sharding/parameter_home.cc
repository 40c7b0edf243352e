#include "libaccel/sharding/parameter_home.h"

namespace accel::sharding {

void place_parameters(const Unit& unit,
                      const at::Tensor& flat,
                      std::vector<NamedParameter>& parameters) {
  for (const Slot& slot : unit.slots) {
    at::Tensor& parameter = parameters[slot.parameter].tensor;
    parameter.set_data(flat.as_strided(
        parameter.sizes(), parameter.strides(), flat.storage_offset() + slot.offset));
  }
}

}  // namespace accel::sharding

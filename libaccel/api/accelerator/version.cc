#include <torch/version.h>

#include <accel/version.h>

namespace accel {

std::string_view version() noexcept {
  return ACCEL_VERSION;
}
std::string_view torch_version() noexcept {
  return TORCH_VERSION;
}

}  // namespace accel

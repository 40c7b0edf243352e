#include <torch/version.h>

#include <accel/version.h>

namespace accel {

std::string_view version() noexcept {
  return "0.1.0";
}
std::string_view torch_version() noexcept {
  return TORCH_VERSION;
}

}  // namespace accel

#include "launcher/devices/other_devices.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// CUDA and HIP both obey CUDA_VISIBLE_DEVICES; "" and "-1" are no device.
constexpr std::array<std::string_view, 4> kOfCuda = {"kfd", "dxg", "nvhost-gpu", "nvgpu"};
// A number follows.
constexpr std::array<std::string_view, 8> kNumbered = {
    "davinci", "accel", "accel/accel", "hl", "neuron", "cambricon_dev", "mtgpu.", "tcaicard"};

bool is_cuda_hidden(const EnvMap& environment) {
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  return visible != environment.end() &&
         (visible->second.empty() || visible->second.starts_with('-'));
}

// True when `is_it` says so of one entry of the folder; a folder that cannot be read has none.
bool any_entry(const char* folder, const std::function<bool(const fs::path&)>& is_it) {
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (is_it(entry->path())) return true;
  }
  return false;
}

std::string vendor_of(const fs::path& device) {
  std::string vendor;
  std::ifstream(device / "device/vendor") >> vendor;
  return vendor;
}

bool is_intel_node(const fs::path& node) {
  if (!node.filename().string().starts_with("renderD")) return false;
  std::error_code failure;
  const fs::path device = fs::read_symlink(node / "device", failure);
  return !failure && is_discrete_intel_gpu(vendor_of(node), device.filename().string());
}

}  // namespace

bool is_other_device(std::string_view entry, const EnvMap& environment) {
  if (std::ranges::find(kOfCuda, entry) != kOfCuda.end()) return !is_cuda_hidden(environment);
  return std::ranges::any_of(kNumbered, [&](std::string_view begin) {
    return entry.starts_with(begin) && is_digits(entry.substr(begin.size()));
  });
}

bool is_discrete_intel_gpu(std::string_view vendor, std::string_view pci_address) {
  return vendor == "0x8086" && pci_address != "0000:00:02.0";
}

bool is_npu_of_processor(std::string_view vendor) {
  return vendor == "0x8086" || vendor == "0x1022";
}

bool has_other_devices(const EnvMap& environment) {
  const auto is_device = [&](const std::string& prefix) {
    return [&environment, prefix](const fs::path& path) {
      return is_other_device(prefix + path.filename().string(), environment);
    };
  };
  const auto is_accelerator = [&](const fs::path& path) {
    return is_device("accel/")(path) &&
           !is_npu_of_processor(vendor_of("/sys/class/accel" / path.filename()));
  };
  return any_entry("/dev", is_device("")) || any_entry("/dev/accel", is_accelerator) ||
         any_entry("/sys/class/drm", is_intel_node);
}

}  // namespace accel::launcher

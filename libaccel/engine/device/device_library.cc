#include "libaccel/engine/device/device_library.h"

#include <string>

#include <ATen/Context.h>
#include <dlfcn.h>

#include <accel/error.h>

#include "libaccel/engine/device/device_backend.h"

namespace accel::device {
namespace {

constexpr const char* kLibraryVariable = "ACCEL_DEVICE_LIBRARY";

// The folder of the file that an address is in; empty when the loader does not know it.
std::filesystem::path folder_of(const void* address) {
  Dl_info where{};
  if (::dladdr(address, &where) == 0 || where.dli_fname == nullptr) return {};
  return std::filesystem::path(where.dli_fname).parent_path();
}

// Never unloaded: what LibTorch registers stays.
Result<void*> open_library(const std::filesystem::path& path) {
  if (void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* const cause = ::dlerror();
  return Error(ErrorCode::kLibraryMissing,
               cause != nullptr ? cause : path.string() + " cannot be loaded");
}

Error stranger(const std::filesystem::path& path, const std::string& what) {
  return Error(ErrorCode::kUnsupported, path.string() + " " + what);
}

}  // namespace

std::filesystem::path device_library_path(const EnvLookup& env) {
  if (const auto named = env(kLibraryVariable); named && !named->empty()) return *named;
  constexpr const char* kName = "libaccel_cuda.so";
  const auto folder = folder_of(reinterpret_cast<const void*>(&device_library_path));
  std::error_code error;
  const auto beside = folder / kName;
  const auto below = folder / "accel" / kName;
  return !std::filesystem::exists(beside, error) && std::filesystem::exists(below, error) ? below
                                                                                          : beside;
}

Result<DeviceBackend*> load_device_backend(const std::filesystem::path& library) {
  std::error_code error;
  if (!std::filesystem::exists(library, error))
    return Error(ErrorCode::kLibraryMissing, "there is no " + library.string());
  const auto torch = open_library(folder_of(reinterpret_cast<const void*>(&at::globalContext)) /
                                  "libtorch_cuda.so");
  auto opened = open_library(library);
  if (!opened) {
    std::string why = opened.error().message();
    if (!torch && torch.error().message() != why) why += "; " + torch.error().message();
    return Error(ErrorCode::kLibraryMissing, why);
  }
  auto* const interface = reinterpret_cast<int (*)()>(::dlsym(*opened, kInterfaceFunction));
  auto* const backend = reinterpret_cast<DeviceBackend* (*)()>(::dlsym(*opened, kBackendFunction));
  if (interface == nullptr || backend == nullptr)
    return stranger(library, "is no library of devices of accel");
  if (const int found = interface(); found != kDeviceInterface)
    return stranger(library,
                    "is of another version of accel: its interface is " + std::to_string(found) +
                        ", that of libaccel " + std::to_string(kDeviceInterface));
  return backend();
}

}  // namespace accel::device

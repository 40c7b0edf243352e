// Version: the versions of accel and of the LibTorch that it was built for.
#pragma once

#include <string_view>

#include <accel/export.h>

namespace accel {

// Such as "0.2.0".
ACCEL_EXPORT std::string_view version() noexcept;

// "2.11.0": the version of LibTorch that libaccel was compiled against.
ACCEL_EXPORT std::string_view torch_version() noexcept;

}  // namespace accel

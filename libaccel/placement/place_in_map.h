// Where a device map puts a parameter.
#pragma once

#include <string>

#include <accel/device_map.h>

namespace accel::placement {

// The place of the innermost module that the map names, or of the parameter itself; nullptr: none.
inline const Placement* place_in_map(const DeviceMap& map, std::string name) {
  for (;;) {
    if (const auto found = map.find(name); found != map.end()) return &found->second;
    if (name.empty()) return nullptr;
    const auto dot = name.rfind('.');
    name.resize(dot == std::string::npos ? 0 : dot);
  }
}

}  // namespace accel::placement

// MappedMemory: which mapping of this process a tensor lies in.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <ATen/core/Tensor.h>

namespace accel::test {

// Whether it lies in memory that the kernel lists under that name.
inline bool lies_in(const at::Tensor& tensor, const std::string& name) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::size_t begin_digits = 0;
    const std::uintptr_t begin = std::stoull(line, &begin_digits, 16);
    const std::uintptr_t end = std::stoull(line.substr(begin_digits + 1), nullptr, 16);
    if (address >= begin && address < end) return line.find(name) != std::string::npos;
  }
  return false;
}

}  // namespace accel::test

// NpyHeader: what the first bytes of a .npy file say of the array behind them.
//
//   \x93NUMPY, version, length, a dictionary of Python: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//
// Threads:  pure functions. Nothing of a file is believed: sizes are compared with the file's.
// Source:   numpy/lib/format.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::train {

// The first bytes of a .npy file that suffice for any header that NumPy writes.
inline constexpr std::size_t kNpyHeadBytes = 4096;

struct NpyHeader {
  std::string descr;  // "<f4"
  std::vector<std::uint64_t> shape;
  std::uint64_t count = 1;   // elements: the product of the shape
  std::uint64_t offset = 0;  // of the first element, in bytes from the start of the file
};

// Errors  kInvalidArgument, with `name` and `remedy`: it is no .npy file, is cut, in Fortran's order, or has more elements than 64 bits count.
[[nodiscard]] Result<NpyHeader> read_npy_header(std::string_view head,
                                                const std::string& name,
                                                const std::string& remedy);

}  // namespace accel::train

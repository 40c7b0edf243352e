#include "checkpoint_tools/formats/crc32.h"

#include <boost/crc.hpp>

namespace accel::launcher {

std::uint32_t crc32(std::span<const std::byte> bytes) {
  boost::crc_32_type checksum;
  checksum.process_bytes(bytes.data(), bytes.size());
  return checksum.checksum();
}

}  // namespace accel::launcher

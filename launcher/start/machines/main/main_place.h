// MainPlace: who is machine 0 of a job, and where its store listens, or its coordinator, as it stands in etcd.
//
// Threads:  plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

struct MainPlace {
  std::string id;    // of its launcher alone
  std::string host;  // the machine's name
  std::string address;
  std::uint16_t port = 0;
  bool has_coordinator = false;  // --nnodes is a range; else a store listens there

  // "gpu-01 (10.0.0.1:29500)", printable.
  [[nodiscard]] std::string describe() const;
};

[[nodiscard]] std::string to_text(const MainPlace& place);
// Errors  kProtocol: it is none; the message says what is missing.
[[nodiscard]] Result<MainPlace> main_place_from(std::string_view text);

}  // namespace accel::launcher

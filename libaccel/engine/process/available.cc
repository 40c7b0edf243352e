#include <string>

#include <arpa/inet.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <accel/available.h>
#include <accel/error.h>

#include "runtime/unique_fd.h"

namespace accel {

bool is_device_available(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) &&
         c10::impl::getDeviceGuardImpl(type)->deviceCount() > 0;
}

bool is_private_device_available(const char* name) {
  return c10::get_privateuse1_backend(true) == name &&
         is_device_available(c10::DeviceType::PrivateUse1);
}

bool is_port_in_use(int port) {
  if (port < 1 || port > 65535) {
    throw Error(ErrorCode::kInvalidArgument,
                "is_port_in_use: " + std::to_string(port) + " is no port",
                "pass a number from 1 to 65535");
  }
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<std::uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return socket &&
         ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace accel

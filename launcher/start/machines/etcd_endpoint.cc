#include "launcher/start/machines/etcd_endpoint.h"

#include <string_view>
#include <utility>

namespace accel::launcher {
namespace {

constexpr std::string_view kEtcdPort = ":2379";

bool has_port(std::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  return colon != std::string_view::npos && endpoint.find(']', colon) == std::string_view::npos;
}

}  // namespace

std::string etcd_endpoint(std::string text) {
  return has_port(text) ? std::move(text) : std::move(text).append(kEtcdPort);
}

}  // namespace accel::launcher

// With Gloo the ranks of one machine talk over the loopback device: what the host name resolves to may be unreachable.
// GLOO_SOCKET_IFNAME overrides that, as in PyTorch.
//
// This is the one file that includes ProcessGroupGloo.hpp. Debian's Gloo headers are older than the Gloo inside
// libtorch_cpu, so only out-of-line members may be used here, no gloo class may be constructed or derived from (its
// vtable would replace the one of the wheel), and libgloo is not linked.

#include "libaccel/engine/process/gloo_backend.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace accel {

using c10d::ProcessGroupGloo;

c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const GlooOptions& options) {
  auto gloo = c10::make_intrusive<ProcessGroupGloo::Options>(options.timeout);
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces != nullptr && *interfaces != '\0') {
    std::string_view rest = interfaces;
    while (!rest.empty()) {
      const auto name = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), name.size() + 1));
      gloo->devices.push_back(ProcessGroupGloo::createDeviceForInterface(std::string(name)));
    }
  } else if (options.is_one_machine) {
    gloo->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    gloo->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("default_pg", store),
      options.rank,
      options.world_size,
      gloo);
}

}  // namespace accel

#include "launcher/start/machines/settings/machines_settings.h"

namespace accel::launcher {

std::string MachinesSettings::place_flags() const {
  if (is_at_endpoint) return port_flag();
  return spelled("main_process_ip", program) + " and " + port_flag();
}

std::string MachinesSettings::port_flag() const {
  return spelled(is_at_endpoint ? "rdzv_endpoint" : "main_process_port", program);
}

}  // namespace accel::launcher

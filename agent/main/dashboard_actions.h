// DashboardActions: what operators do from the agent's page, by the Control service.
//
// An operator of the page may do what a certificate of that role may. Its name in audit lines has the address it came from.
//
// Threads:  on the loop.
// Source:   docs/guides/dashboard.md, docs/admin/security.md.
#pragma once

#include <functional>
#include <string_view>

#include "agent/control/control_service.h"
#include "runtime/supervisor/dashboard/dashboard_server.h"

namespace accel::agent {

// `done` is called once, when the service has said what came of it.
void carry_out(const supervisor::DashboardAction& action,
               ControlService& control,
               std::function<void(supervisor::DashboardOutcome)> done);

// Pure. Whether the title of a diagnosis, "node gpu-02, rank 3, pid 77", is about that rank.
[[nodiscard]] bool is_about_rank(std::string_view title, int rank);

}  // namespace accel::agent

// DashboardActions: what operators do from the agent's page, by the Control service.
//
// An operator of the page may do what a certificate of that role may. Its name in audit lines has the address it came from.
//
// Threads:  on the loop.
// Source:   docs/guides/dashboard.md, docs/admin/security.md.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include <boost/asio/io_context.hpp>

#include "agent/control/control_service.h"
#include "runtime/supervisor/dashboard/dashboard_server.h"

namespace accel::agent {

using TellOutcome = std::function<void(supervisor::DashboardOutcome)>;

inline constexpr std::chrono::milliseconds kActionPatience{10'000};

// `done` is called once: when the service has said what came of it, or after kActionPatience. A job that is stopping is left alone
// unless action.kill says so: another stop would be a SIGKILL.
void carry_out(const supervisor::DashboardAction& action,
               ControlService& control,
               boost::asio::io_context& loop,
               TellOutcome done);

// Takes the stacks of one rank out of a diagnosis, and calls `done` once: with them, or after `patience` with those that came. It
// keeps no diagnosis: one whose read hangs is gone with the FileReaders.
[[nodiscard]] ControlService::DiagnosisTaker taker_of_stacks(int rank,
                                                             boost::asio::io_context& loop,
                                                             std::chrono::milliseconds patience,
                                                             TellOutcome done);

// Pure. Whether the title of a diagnosis, "node gpu-02, rank 3, pid 77", is about that rank.
[[nodiscard]] bool is_about_rank(std::string_view title, int rank);

}  // namespace accel::agent

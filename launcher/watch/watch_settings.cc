#include "launcher/watch/watch_settings.h"

#include <string>

#include <boost/asio/ip/address.hpp>

#include "runtime/text/endpoint_text.h"

namespace accel::launcher {
namespace {

constexpr int kMostWatchPort = 65'535;
constexpr const char* kWatchFlags[] = {"metrics_port", "dashboard", "dashboard_port"};

}  // namespace

WatchSettings choose_watch(const CommandLine& line, Faults& faults) {
  WatchSettings settings;
  const auto metrics = integer_flag(line, "metrics_port", 0, kMostWatchPort, faults);
  const auto port = integer_flag(line, "dashboard_port", 0, kMostWatchPort, faults);
  bool is_wanted = false;
  for (const char* flag : kWatchFlags) is_wanted |= line.has(flag);
  if (line.has("tracking_dir") && !line.has("dashboard") && !line.has("dashboard_port")) {
    faults.add(Error(ErrorCode::kUsage,
                     line.spelled("tracking_dir") + " says whose curves the dashboard draws, and "
                                                    "there is to be none",
                     "give " + line.spelled("dashboard") + " too"));
    return settings;
  }
  if (!is_wanted) {
    for (const char* flag : {"watch_address", "watch_beyond_loopback"}) {
      if (line.has(flag)) {
        faults.add(Error(
            ErrorCode::kUsage,
            line.spelled(flag) + " says where the job is shown, and nothing is to be",
            "give " + line.spelled("dashboard") + " or " + line.spelled("metrics_port") + " too"));
      }
    }
    return settings;
  }
  const std::string text = without_brackets(line.text("watch_address").value_or("127.0.0.1"));
  boost::system::error_code not_numeric;
  const auto address = boost::asio::ip::make_address(text, not_numeric);
  if (not_numeric) {
    faults.add(
        Error(ErrorCode::kInvalidArgument,
              line.spelled("watch_address") + " is '" + text + "', expected a numeric address",
              "give an IPv4 or IPv6 address of this machine, as " + line.spelled("watch_address") +
                  " 127.0.0.1"));
    return settings;
  }
  if (!address.is_loopback() && !line.is_on("watch_beyond_loopback")) {
    faults.add(Error(ErrorCode::kInvalidArgument,
                     "the job is shown without TLS, and " + line.spelled("watch_address") + " is " +
                         text + ", which is not a loopback address",
                     "use 127.0.0.1, or give " + line.spelled("watch_beyond_loopback") +
                         " where the network is trusted"));
    return settings;
  }
  if (metrics) settings.metrics.emplace(address, static_cast<std::uint16_t>(*metrics));
  if (port || line.is_on("dashboard"))
    settings.dashboard.emplace(address, static_cast<std::uint16_t>(port.value_or(0)));
  if (const auto folder = line.text("tracking_dir")) settings.tracking_dir = *folder;
  return settings;
}

}  // namespace accel::launcher

#include "agent/service_manager.h"

#include <cstdint>
#include <ctime>

#include <systemd/sd-daemon.h>

namespace accel::agent {
namespace {

// A status is one line of the message.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

void notify(const std::string& message) {
  ::sd_notify(/*unset_environment=*/0, message.c_str());
}

}  // namespace

ServiceManager::ServiceManager(boost::asio::io_context& loop, std::function<bool()> is_healthy)
    : timer_(loop), is_healthy_(std::move(is_healthy)) {
  std::uint64_t usec = 0;
  if (::sd_watchdog_enabled(0, &usec) > 0) watchdog_ = std::chrono::microseconds(usec);
}

void ServiceManager::ready(const std::string& status) {
  notify("READY=1\nSTATUS=" + one_line(status));
  if (watchdog_.count() > 0) beat();
}

void ServiceManager::beat() {
  if (is_healthy_()) notify("WATCHDOG=1");
  timer_.expires_after(watchdog_ / 3);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) beat();
  });
}

void ServiceManager::status(const std::string& status) {
  notify("STATUS=" + one_line(status));
}

void ServiceManager::reloading() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto usec = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
                    static_cast<std::uint64_t>(now.tv_nsec) / 1'000;
  notify("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(usec));
}

void ServiceManager::stopping(const std::string& status) {
  notify("STOPPING=1\nSTATUS=" + one_line(status));
}

void ServiceManager::extend(std::chrono::microseconds more) {
  notify("EXTEND_TIMEOUT_USEC=" + std::to_string(more.count()));
}

void ServiceManager::failed(int error_number, const std::string& status) {
  notify("ERRNO=" + std::to_string(error_number) + "\nSTATUS=" + one_line(status));
}

}  // namespace accel::agent

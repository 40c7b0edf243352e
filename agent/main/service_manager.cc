#include "agent/main/service_manager.h"

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <utility>

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

ServiceManager::ServiceManager() {
  std::uint64_t usec = 0;
  if (::sd_watchdog_enabled(0, &usec) > 0) watchdog_ = std::chrono::microseconds(usec);
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    kept_.emplace(names[i], UniqueFd(SD_LISTEN_FDS_START + i));
    std::free(names[i]);
  }
  std::free(names);
}

void ServiceManager::sign_of_life() {
  notify("WATCHDOG=1");
}

bool ServiceManager::keep(int fd, const std::string& name) {
  const std::string message = "FDSTORE=1\nFDNAME=" + name;
  return ::sd_pid_notify_with_fds(0, /*unset_environment=*/0, message.c_str(), &fd, 1) > 0;
}

UniqueFd ServiceManager::take(const std::string& name) {
  auto found = kept_.extract(name);
  return found.empty() ? UniqueFd() : std::move(found.mapped());
}

void ServiceManager::ready(const std::string& status) {
  notify("READY=1\nSTATUS=" + one_line(status));
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

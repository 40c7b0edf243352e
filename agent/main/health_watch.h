// HealthWatch: the sign of life that systemd waits for, given only while everything in the agent moves.
//
//   pulse | beats when
//   ------+-----------------------------------------------------------------------------------
//   loops | the supervisor's loop, and the coordinator's where it is here, took what was posted to them
//   rpc   | a health check on a fresh connection to the agent's own socket was answered SERVING
//   beat  | the thread of this class took its turn: it touches neither disk nor any lock of others
//
// In each turn of the thread: when all others have beaten since the last sign, the next sign is given and they are
// asked anew. Otherwise `on_missing` is told once what is missing, and nothing more is asked until it has come.
//
// Threads:  constructed and destroyed on the loop's thread; `sign` and `on_missing` are called on the watch's own.
// Source:   docs/admin/deploy.md.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>

namespace accel::agent {

class HealthWatch {
 public:
  struct Handlers {
    std::function<void()> sign;
    std::function<void(const std::string&)> on_missing;  // "the supervisor's loop", ...
  };
  struct Loop {
    std::string name;  // for on_missing
    boost::asio::io_context& loop;
  };
  // `period` is a third of what the manager grants.
  HealthWatch(std::vector<Loop> loops,
              std::string socket_path,
              std::chrono::microseconds period,
              Handlers handlers);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

 private:
  struct Pulses {                         // shared with what was posted and with the call in flight
    std::atomic<std::uint64_t> loops{0};  // a bit for each that has answered
    std::atomic<bool> has_rpc{false};
    std::atomic<bool> is_rpc_in_flight{false};
  };
  struct Check;

  void run();
  void ask();
  void ask_rpc();
  void judge();

  const std::vector<Loop> loops_;
  const std::string socket_path_;
  const std::chrono::microseconds period_;
  Handlers handlers_;
  std::shared_ptr<Pulses> pulses_ = std::make_shared<Pulses>();
  std::unique_ptr<Check> check_;  // of the thread; replaced only when it is not in flight
  std::string told_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_closing_ = false;
  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace accel::agent

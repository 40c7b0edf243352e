// StoreLink: the connection of a launcher to the store of machine 0, opened again whenever it breaks.
//
// Threads:  the one that runs the io_context; names are looked up on threads that nobody waits for (DetachedCall).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "runtime/supervisor/kernel/detached_call.h"
#include "runtime/supervisor/store/store_client.h"

namespace accel::launcher {

// What this machine would send from to reach `there`: "10.0.0.2 (eth0)", "no route (...)". Sends nothing.
[[nodiscard]] std::string way_towards(const supervisor::TcpEndpoint& there);

// Before the next try.
struct StorePauses {
  std::chrono::milliseconds connect{250};  // after a connection broke, or was not made
  std::chrono::milliseconds look_up{500};  // from one question for a name's addresses to the next
};

class StoreLink {
 public:
  struct Handlers {
    std::function<void()> on_up;
    // It broke, or a try to connect failed; the next one comes by itself.
    std::function<void(const Error&)> on_trouble;
  };
  StoreLink(boost::asio::io_context& context, Handlers handlers, StorePauses pauses = {});

  // The addresses of `host`. Errors  kStoreUnreachable: there is none by that name.
  void find(const std::string& host,
            std::uint16_t port,
            std::function<void(Result<std::vector<supervisor::TcpEndpoint>>)> done);

  // Connects to one of them, whichever answers first in their order. One that worked is tried first when
  // it breaks.
  // Requires: at least one.
  void open(std::vector<supervisor::TcpEndpoint> addresses);
  // What the name leads to by now, for the tries to come. One that is under way counts for nothing.
  // Requires: open() was called, and at least one.
  void move_to(std::vector<supervisor::TcpEndpoint> addresses);
  void close();

  // Requires: is_idle().
  void exchange(const supervisor::StoreExchange& wanted,
                std::function<void(const supervisor::StoreAnswer&)> done);

  // Where the store is, how this machine would reach it and what the last try ended with:
  // "gpu-01:29500 (10.0.0.7:29500) from 10.0.0.2 (eth0): Connection refused (errno 111)".
  // Requires: open() was called.
  [[nodiscard]] std::string describe_way(const std::string& name) const;

  // No address has answered since it was opened or broke, and each was tried.
  [[nodiscard]] bool has_tried_all() const { return num_tried_ >= addresses_.size(); }
  [[nodiscard]] bool is_up() const { return is_up_; }
  // The last try met a host where nothing listens on the port.
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  [[nodiscard]] bool is_idle() const { return is_up_ && !is_asking_; }
  [[nodiscard]] supervisor::TcpEndpoint local_endpoint() const { return client_.local_endpoint(); }

 private:
  void connect();
  void fail(const Error& why);

  Handlers handlers_;
  StorePauses pauses_;
  supervisor::StoreClient client_;
  std::optional<supervisor::DetachedCall<std::vector<boost::asio::ip::address>>>
      lookup_;                       // the last one
  boost::asio::steady_timer timer_;  // the limit of a try, or the pause after it
  std::vector<supervisor::TcpEndpoint> addresses_;
  std::size_t next_ = 0;
  std::size_t num_tried_ = 0;  // in vain, one after another
  std::string last_trouble_;
  bool has_moved_ = false;  // since the last try began: next_ is where the next one goes
  bool is_up_ = false;
  bool is_refused_ = false;
  bool is_asking_ = false;
};

}  // namespace accel::launcher

// ShimLink: one shim, as its agent hears it.
//
// The shim runs as its user, who may stop, trace or replace it: an untrusted peer with budgets of rate, bytes and time. What
// it says concerns its own job alone (docs/admin/security.md, "The trust boundary").
//
//   closed --open()--> open --on_event: JobOutcome, or on_lost; then close()--> closed
//                        '--must_act_within() is over: its shim is killed, on_lost follows
//
//   rate, bytes  kBurst units, which fill again at kUnitsEach second; an event costs one, one more for each 4 KiB, and
//                kRecordUnits when the agent may write a record for it. Beyond them the shim is not read: it waits.
//   fairness     after kEventsATurn events, or kBytesATurn, other work of the loop comes first
//   claims       one that speaks of workers which the job does not have is killed
//   time         what it is told to end it ends, or is killed: must_act_within(). A shim that has said its last word,
//                or is lost, is waited for by a thread of its host, never by the loop (ShimHostOptions::patience).
//
// Threads:  the one that runs the io_context.
// Source:   tests/unit/agent/shims/shim_link_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/access/token_bucket.h"
#include "runtime/clock.h"
#include "runtime/supervisor/owner/worker_host.h"

namespace accel::agent {

class ShimLink {
 public:
  // 1,024 workers that end together cost 18,432 with tails of 64 KiB each.
  static constexpr std::int64_t kBurst = 32'768;
  static constexpr std::int64_t kUnitsEach = 1'024;
  static constexpr std::int64_t kRecordUnits = 64;
  static constexpr int kEventsATurn = 64;
  static constexpr std::uint64_t kBytesATurn = 1 << 20;
  struct Handlers {
    std::function<void(const supervisor::HostEvent&)> on_event;
    std::function<void(const Error&)>
        on_lost;  // nothing of the job is left that is known, but num_unkillable()
  };

  explicit ShimLink(boost::asio::io_context& loop, const Clock& clock = steady_clock());
  ShimLink(const ShimLink&) = delete;
  ShimLink& operator=(const ShimLink&) = delete;

  // num_workers: of the job on this node, at most. Requires: !is_open().
  void open(std::unique_ptr<supervisor::WorkerHost> host, Handlers handlers, int num_workers);
  // May be called by a handler.
  void close();
  [[nodiscard]] bool is_open() const { return host_ != nullptr; }
  explicit operator bool() const { return is_open(); }

  // Tells what is there already, from within this call; what comes later comes by itself.
  void read();
  void request(const supervisor::HostRequest& request);
  [[nodiscard]] int num_unkillable() const { return host_ ? host_->num_unkillable() : 0; }
  // As WorkerHost's, within on_lost.
  [[nodiscard]] bool is_end_proved() const { return host_ && host_->is_end_proved(); }

  // Unless it has acted by then, has_acted() or its last word, the shim is killed. The earliest such time counts.
  void must_act_within(Duration time);
  void has_acted();
  void kill(const std::string& why);

 private:
  static const Clock& steady_clock();
  void wait();
  void rest(Duration pause);
  void look_at_deadline();
  void refuse(const supervisor::HostEvent& claim);

  const Clock& clock_;
  Handlers handlers_;
  int num_workers_ = 0;
  std::unique_ptr<supervisor::WorkerHost> host_;
  boost::asio::posix::stream_descriptor
      events_;  // a copy of the host's descriptor: closed before the host
  bool is_waiting_ = false;
  TokenBucket budget_;
  boost::asio::steady_timer pause_;
  boost::asio::steady_timer limit_;
  std::optional<TimePoint> act_until_;
  std::shared_ptr<const bool> life_ =
      std::make_shared<const bool>(true);  // for calls that are queued
};

// From the order to stop to the shim's word that it is done, when it does what it should: 25 s beyond the grace.
[[nodiscard]] Duration stop_limit(const supervisor::StopPolicy& policy,
                                  std::chrono::milliseconds grace);

}  // namespace accel::agent

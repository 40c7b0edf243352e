// ShimLink: the shim of this machine, for one loop: its events as they come, and what is asked of it for a generation.
//
// Threads:  that of the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <accel/result.h>

#include "launcher/run/progress_display.h"
#include "launcher/start/machines/decisions/machine.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "runtime/supervisor/owner/worker_host.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

class ShimLink {
 public:
  struct Handlers {
    std::function<void(const supervisor::HostEvent&)> on_event;  // a JobOutcome is the last one
    std::function<void(Error)> on_lost;  // the shim is gone, or of another build
  };

  ShimLink(boost::asio::io_context& context, Handlers handlers);

  // First of all. Errors  those of start_shim().
  [[nodiscard]] Result<void> start(const supervisor::JobSpec& spec,
                                   ProgressDisplay::Options progress);

  void open_store(int generation, const std::string& bind_address, std::uint16_t port);
  void prepare(int generation,
               const PrepareWorkers& workers,
               const MachinesSettings& settings,
               bool hosts_store);
  void start_workers(int generation, const MachinesSettings& settings);
  void stop_workers(int generation,
                    supervisor::StopMode mode,
                    supervisor::Milliseconds grace = supervisor::Milliseconds(-1));
  // What is of no generation: Suspend, Resume, DumpStacks, TakeSnapshot, Finish.
  void request(const supervisor::HostRequest& request) { host_->request(request); }

  // The progress line, once started. Nothing is left of it when hide_progress() returns; before start() it does nothing.
  [[nodiscard]] ProgressDisplay& progress() { return *progress_; }
  void hide_progress();
  void end_progress();  // hidden for good

 private:
  void wait();
  bool take();
  void take_held();

  Handlers handlers_;
  boost::asio::io_context& context_;
  std::unique_ptr<supervisor::WorkerHost> host_;
  std::optional<ProgressDisplay> progress_;
  bool has_ended_ = false;                        // nothing more comes
  boost::asio::posix::stream_descriptor events_;  // a copy
};

}  // namespace accel::launcher

#include "launcher/start/machines/run/shim_link.h"

#include <utility>
#include <variant>

#include <boost/asio/post.hpp>
#include <fcntl.h>

namespace accel::launcher {

ShimLink::ShimLink(boost::asio::io_context& context, Handlers handlers)
    : handlers_(std::move(handlers)), context_(context), events_(context) {}

Result<void> ShimLink::start(const supervisor::JobSpec& spec, ProgressDisplay::Options progress) {
  auto host = supervisor::start_shim(spec);
  if (!host) return std::move(host).error();
  host_ = *std::move(host);
  progress_.emplace(*host_, std::move(progress));
  events_.assign(::fcntl(host_->event_fd(), F_DUPFD_CLOEXEC, 3));
  wait();
  return {};
}

void ShimLink::wait() {
  events_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                     [this](const boost::system::error_code& failure) {
                       if (!failure && take()) wait();
                     });
}

// Whether more may come.
bool ShimLink::take() {
  while (!has_ended_) {
    auto event = progress_->next_event();
    has_ended_ = !event || (*event && std::holds_alternative<supervisor::JobOutcome>(**event));
    if (!event) {
      handlers_.on_lost(std::move(event).error());
    } else if (*event) {
      progress_->hear(**event);
      handlers_.on_event(**event);
    } else {
      return true;
    }
  }
  return false;
}

void ShimLink::hide_progress() {
  if (!progress_) return;
  progress_->hide();
  take_held();
}

void ShimLink::end_progress() {
  progress_->end();
  take_held();
}

// The descriptor does not tell of what has been read already.
void ShimLink::take_held() {
  if (progress_->has_held()) boost::asio::post(context_, [this] { take(); });
}

void ShimLink::open_store(int generation, const std::string& bind_address, std::uint16_t port) {
  request(supervisor::OpenStore{.generation = generation,
                                .bind_address = bind_address,
                                .port = port,
                                .is_exact_port = true,
                                .members = {std::string(supervisor::kEveryMachine)}});
}

void ShimLink::prepare(int generation,
                       const PrepareWorkers& workers,
                       const MachinesSettings& settings,
                       bool hosts_store) {
  request(supervisor::PrepareGeneration{.generation = generation,
                                        .restart_count = workers.restart_count,
                                        .first_rank = workers.first_rank,
                                        .world_size = workers.world_size,
                                        .node_rank = settings.machine_rank.value_or(0),
                                        .num_nodes = settings.num_machines,
                                        .hosts_store = hosts_store});
}

void ShimLink::start_workers(int generation, const MachinesSettings& settings) {
  request(supervisor::StartGeneration{
      .generation = generation, .master_addr = settings.address, .master_port = settings.port});
}

void ShimLink::stop_workers(int generation,
                            supervisor::StopMode mode,
                            supervisor::Milliseconds grace) {
  request(supervisor::StopGeneration{.generation = generation, .mode = mode, .grace = grace});
}

}  // namespace accel::launcher

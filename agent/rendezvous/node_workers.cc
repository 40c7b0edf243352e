#include "agent/rendezvous/node_workers.h"

#include <charconv>

#include <boost/asio/post.hpp>
#include <fcntl.h>

#include "agent/rendezvous/node_address.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

// "10.0.0.7:41233", "[::1]:5"; an empty host for anything else.
std::pair<std::string, int> split_endpoint(const std::string& endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos) return {};
  std::string host = endpoint.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  int port = 0;
  std::from_chars(endpoint.data() + colon + 1, endpoint.data() + endpoint.size(), port);
  return {host, port};
}

}  // namespace

NodeWorkers::NodeWorkers(asio::io_context& loop, NodeWorkersOptions options, Handlers handlers)
    : loop_(loop), options_(std::move(options)), handlers_(std::move(handlers)), events_(loop) {
  options_.spec.control = supervisor::GenerationControl::kOwner;
}

NodeWorkers::~NodeWorkers() {
  drop_host();
}

Result<void> NodeWorkers::start_host() {
  auto host = supervisor::start_shim(options_.spec, options_.shim);
  if (!host) return std::move(host).error();
  host_ = *std::move(host);
  events_.assign(::fcntl(host_->event_fd(), F_DUPFD_CLOEXEC, 3));
  wait();
  return {};
}

void NodeWorkers::drop_host() {
  boost::system::error_code ignored;
  events_.close(ignored);
  host_.reset();
}

void NodeWorkers::park(const ParkWorkers& order, std::vector<std::string> members) {
  generation_ = order.generation;
  is_over_ = false;
  park_began_ = SteadyClock().now();
  progress_.restart();
  hosts_store_ = order.assign.node_index == 0;
  // What was renewed since the order was given counts.
  const bool is_renewed = renewed_generation_ == generation_ && order.lease_until;
  lease_until_ = is_renewed ? std::max(renewed_until_, *order.lease_until) : order.lease_until;
  if (!host_) {
    if (auto started = start_host(); !started) {
      asio::post(loop_, [this, why = started.error().message()] { park_failed("shim", why); });
      return;
    }
  }
  supervisor::PrepareGeneration prepare;
  prepare.generation = static_cast<int>(order.generation);
  prepare.restart_count = order.assign.restart_count;
  prepare.first_rank = order.assign.first_rank;
  prepare.world_size = order.assign.world_size;
  prepare.node_rank = order.assign.node_index;
  prepare.num_nodes = order.assign.num_nodes;
  prepare.hosts_store = hosts_store_;
  prepare.bind_address = options_.address;
  prepare.port = options_.store_port;
  prepare.is_exact_port = options_.store_port != 0;
  prepare.members = std::move(members);
  if (lease_until_) prepare.lease_until = supervisor::to_boot_time(*lease_until_);
  host_->request(prepare);
}

void NodeWorkers::park_failed(const char* check, const std::string& why) {
  handlers_.on_parked({.job_uuid = options_.job_uuid,
                       .generation = generation_,
                       .store_endpoint = {},
                       .failed_checks = {{check, why}}});
}

// Also before park(): the order may still wait for the list of members.
void NodeWorkers::renew(const RenewLease& renewal) {
  renewed_generation_ = renewal.generation;
  renewed_until_ = renewal.until;
  if (!host_ || is_over_ || renewal.generation != generation_ || !lease_until_) return;
  host_->request(supervisor::RenewLease{.generation = static_cast<int>(generation_),
                                        .until = supervisor::to_boot_time(renewal.until)});
}

void NodeWorkers::release(const ReleaseWorkers& order) {
  if (!host_ || order.generation != generation_) return;
  const auto [host, port] = split_endpoint(order.store_endpoint);
  host_->request(supervisor::StartGeneration{
      .generation = static_cast<int>(generation_), .master_addr = host, .master_port = port});
}

void NodeWorkers::stop(const StopWorkers& order) {
  if (!host_ || is_over_ || order.generation != generation_) {
    asio::post(loop_, [this, order] {
      handlers_.on_gone(
          {.job_uuid = order.job_uuid, .generation = order.generation, .num_unkillable = 0});
    });
    return;
  }
  host_->request(supervisor::StopGeneration{
      .generation = static_cast<int>(generation_),
      .mode = order.kill ? supervisor::StopMode::kKill : supervisor::StopMode::kTerminate,
      .grace = order.grace});
}

void NodeWorkers::ask_steps() {
  if (host_ && !pids_.empty()) host_->request(supervisor::TakeSnapshot{});
}

void NodeWorkers::finish() {
  if (host_) return host_->request(supervisor::Finish{});
  asio::post(loop_, handlers_.on_finished);
}

void NodeWorkers::kill() {
  if (!host_ || is_over_) return;
  host_->request(supervisor::StopGeneration{.generation = static_cast<int>(generation_),
                                            .mode = supervisor::StopMode::kKill,
                                            .grace = supervisor::Milliseconds(0)});
}

void NodeWorkers::wait() {
  events_.async_wait(asio::posix::descriptor_base::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (!error) take_events();
                     });
}

void NodeWorkers::take_events() {
  while (host_) {
    auto event = host_->next_event();
    if (!event) return lose_host(event.error());
    if (!*event) return wait();
    on_event(**event);
  }
}

void NodeWorkers::on_event(const supervisor::HostEvent& event) {
  const std::string& job = options_.job_uuid;
  if (const auto* hello = std::get_if<supervisor::Hello>(&event)) {
    shim_protocol_ = hello->protocol;
    shim_build_ = hello->build;
  } else if (const auto* prepared = std::get_if<supervisor::Prepared>(&event)) {
    if (lease_until_ && shim_protocol_ < supervisor::kLeaseProtocol) {
      return park_failed("lease", "accel-shim of build " + shim_build_ + " keeps no lease");
    }
    handlers_.on_parked(
        {.job_uuid = job,
         .generation = static_cast<std::uint64_t>(prepared->generation),
         .store_endpoint =
             hosts_store_ ? endpoint_text(options_.address, prepared->store_port) : "",
         .failed_checks = {},
         .took = std::chrono::duration_cast<Milliseconds>(SteadyClock().now() - park_began_)});
  } else if (const auto* failed = std::get_if<supervisor::PrepareFailed>(&event)) {
    handlers_.on_parked({.job_uuid = job,
                         .generation = static_cast<std::uint64_t>(failed->generation),
                         .store_endpoint = {},
                         .failed_checks = {{"prepare", failed->error.message()}}});
  } else if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
    pids_ = started->pids;
  } else if (const auto* exit = std::get_if<supervisor::WorkerExit>(&event)) {
    handlers_.on_exited(
        {.job_uuid = job, .generation = generation_, .step = exit->step, .exit = *exit});
  } else if (const auto* snapshot = std::get_if<supervisor::Snapshot>(&event)) {
    const bool is_present = !is_over_ && snapshot->generation == static_cast<int>(generation_);
    if (!is_present || !handlers_.on_steps) return;
    handlers_.on_steps(progress_.observe(job, generation_, *snapshot));
  } else if (const auto* ended = std::get_if<supervisor::GenerationEnded>(&event)) {
    outcome_ = ended->outcome;
    end_generation(ended->is_clean ? 0 : 1);
  } else if (const auto* notice = std::get_if<supervisor::Notice>(&event)) {
    handlers_.on_notice(notice->text);
  } else if (std::holds_alternative<supervisor::JobOutcome>(event)) {
    drop_host();
    handlers_.on_finished();
  }
}

void NodeWorkers::end_generation(int num_unkillable) {
  is_over_ = true;
  pids_.clear();
  handlers_.on_gone(
      {.job_uuid = options_.job_uuid, .generation = generation_, .num_unkillable = num_unkillable});
}

// The shim ended without a word; its host has killed what was left. To the coordinator: every worker failed here.
void NodeWorkers::lose_host(const Error& error) {
  drop_host();
  handlers_.on_notice(error.message());
  if (is_over_) return;
  supervisor::WorkerExit exit;
  exit.cause = supervisor::ExitCause::kLost;
  exit.exit_code = error_info(error.code()).exit_status;
  exit.generation = static_cast<int>(generation_);
  handlers_.on_exited(
      {.job_uuid = options_.job_uuid, .generation = generation_, .step = -1, .exit = exit});
  end_generation(0);
}

}  // namespace accel::agent

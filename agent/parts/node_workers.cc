#include "agent/parts/node_workers.h"

#include <utility>

#include <boost/asio/post.hpp>

#include "agent/config/node_address.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"

namespace accel::agent {

namespace asio = boost::asio;

NodeWorkers::NodeWorkers(asio::io_context& loop, NodeWorkersOptions options, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)), shim_(loop) {
  equip(std::move(options));
}

NodeWorkers::~NodeWorkers() = default;

Result<void> NodeWorkers::start_host() {
  auto host = supervisor::start_shim(options_.spec, options_.shim);
  if (!host) return std::move(host).error();
  watch(*std::move(host));
  return {};
}

void NodeWorkers::watch(std::unique_ptr<supervisor::WorkerHost> host) {
  shim_.open(std::move(host),
             {.on_event = [this](const auto& event) { on_event(event); },
              .on_lost = [this](const Error& error) { lose_shim(error); }},
             num_ranks_);
}

void NodeWorkers::equip(NodeWorkersOptions options) {
  options_ = std::move(options);
  options_.spec.control = supervisor::GenerationControl::kOwner;
  num_ranks_ = static_cast<int>(options_.spec.workers.size());
}

void NodeWorkers::park(const ParkWorkers& order, std::vector<std::string> members) {
  generation_ = order.generation;
  is_over_ = false;
  is_finishing_ = false;
  told_.clear();
  park_began_ = SteadyClock().now();
  progress_.restart();
  hosts_store_ = order.assign.node_index == 0;
  first_rank_ = order.assign.first_rank;
  // What was renewed since the order was given counts.
  const bool is_renewed = renewed_generation_ == generation_ && order.lease_until;
  lease_until_ = is_renewed ? std::max(renewed_until_, *order.lease_until) : order.lease_until;
  if (!shim_) {
    if (auto started = start_host(); !started) {
      asio::post(loop_, [this, why = started.error()] {
        park_failed("shim", why.message(), why.code() != ErrorCode::kShimMissing);
      });
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
  shim_.request(prepare);
}

void NodeWorkers::park_failed(const char* check, const std::string& why, bool is_of_job) {
  handlers_.on_parked({.job_uuid = options_.job_uuid,
                       .generation = generation_,
                       .store_endpoint = {},
                       .failed_checks = {{check, why, is_of_job}}});
}

// Also before park(): the order may still wait for the list of members.
void NodeWorkers::renew(const RenewLease& renewal) {
  renewed_generation_ = renewal.generation;
  renewed_until_ = renewal.until;
  if (!shim_ || is_over_ || renewal.generation != generation_ || !lease_until_) return;
  shim_.request(supervisor::RenewLease{.generation = static_cast<int>(generation_),
                                       .until = supervisor::to_boot_time(renewal.until)});
}

void NodeWorkers::release(const ReleaseWorkers& order) {
  if (!shim_ || order.generation != generation_) return;
  const auto [host, port] = split_endpoint(order.store_endpoint);
  shim_.request(
      supervisor::StartGeneration{.generation = static_cast<int>(generation_),
                                  .master_addr = without_brackets(host),
                                  .master_port = number_of<int>(port.value_or("")).value_or(0)});
}

void NodeWorkers::stop(const StopWorkers& order) {
  if (!shim_ || is_over_ || order.generation != generation_) {
    asio::post(loop_, [this, order] {
      handlers_.on_gone({.job_uuid = order.job_uuid,
                         .generation = order.generation,
                         .num_unkillable = 0,
                         .is_proved = unproved_ != order.generation});
    });
    return;
  }
  shim_.request(supervisor::StopGeneration{
      .generation = static_cast<int>(generation_),
      .mode = order.kill ? supervisor::StopMode::kKill : supervisor::StopMode::kTerminate,
      .grace = order.grace});
  shim_.must_act_within(
      stop_limit(options_.spec.stop, order.kill ? supervisor::Milliseconds(0) : order.grace));
}

void NodeWorkers::ask_steps() {
  if (shim_ && !pids_.empty()) shim_.request(supervisor::TakeSnapshot{});
}

void NodeWorkers::dump_stacks() {
  if (shim_ && !pids_.empty()) shim_.request(supervisor::DumpStacks{});
}

void NodeWorkers::finish() {
  is_finishing_ = true;
  if (!shim_) return asio::post(loop_, handlers_.on_finished);
  shim_.request(supervisor::Finish{});
  expect_end();
}

void NodeWorkers::expect_end() {
  const auto& policy = options_.spec.stop;
  shim_.must_act_within(stop_limit(policy, is_over_ ? supervisor::Milliseconds(0) : policy.grace));
}

void NodeWorkers::kill() {
  if (!shim_ || is_over_) return;
  shim_.request(supervisor::StopGeneration{.generation = static_cast<int>(generation_),
                                           .mode = supervisor::StopMode::kKill,
                                           .grace = supervisor::Milliseconds(0)});
  shim_.must_act_within(stop_limit(options_.spec.stop, supervisor::Milliseconds(0)));
}

void NodeWorkers::on_event(const supervisor::HostEvent& event) {
  const std::string& job = options_.job_uuid;
  if (handlers_.on_heard) handlers_.on_heard(event);
  if (const auto* hello = std::get_if<supervisor::Hello>(&event)) {
    shim_protocol_ = hello->protocol;
    shim_build_ = hello->build;
  } else if (const auto* prepared = std::get_if<supervisor::Prepared>(&event)) {
    if (lease_until_ && shim_protocol_ < supervisor::kLeaseProtocol) {
      return park_failed("lease", "accel-shim of build " + shim_build_ + " keeps no lease", true);
    }
    say_parked(prepared->generation, prepared->store_port);
  } else if (const auto* failed = std::get_if<supervisor::PrepareFailed>(&event)) {
    // The shim is parked as before: there is nothing to stop. While it is taken over its snapshot says so.
    if (failed->generation == static_cast<int>(generation_) && num_snapshots_awaited_ == 0)
      is_over_ = true;
    handlers_.on_parked({.job_uuid = job,
                         .generation = static_cast<std::uint64_t>(failed->generation),
                         .store_endpoint = {},
                         .failed_checks = {{"prepare", failed->error.message(), true}}});
  } else if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
    pids_ = started->pids;
  } else if (const auto* exit = std::get_if<supervisor::WorkerExit>(&event)) {
    // Its number may be another process's from now on.
    const auto rank = static_cast<std::size_t>(exit->local_rank);
    if (exit->local_rank >= 0 && rank < pids_.size()) pids_[rank] = 0;
    if (exit->generation == static_cast<int>(generation_)) tell_exit(*exit);
  } else if (const auto* snapshot = std::get_if<supervisor::Snapshot>(&event)) {
    if (num_snapshots_awaited_ == 2) return begin_from(*snapshot);
    if (num_snapshots_awaited_ == 1) return catch_up(*snapshot);
    tell_steps(*snapshot);
  } else if (const auto* ended = std::get_if<supervisor::GenerationEnded>(&event)) {
    end_as_told(*ended);
  } else if (const auto* notice = std::get_if<supervisor::Notice>(&event)) {
    handlers_.on_notice(notice->text);
  } else if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&event)) {
    end_shim(*outcome);
  }
}

// One of an older generation, or told again, ends nothing.
void NodeWorkers::end_as_told(const supervisor::GenerationEnded& ended) {
  // Its user's word that something cannot be killed is no reason to put the node aside: the agent tries it itself.
  if (!ended.is_clean) return shim_.kill("could not end all workers");
  if (is_over_ || ended.generation != static_cast<int>(generation_)) return;
  outcome_ = ended.outcome;
  if (num_snapshots_awaited_ > 0) tell_missing(ended.outcome.exits);
  shim_.has_acted();
  is_over_ = true;
  if (is_finishing_) expect_end();
  end_generation({});
}

// Which ranks the local ones are is this side's to say.
void NodeWorkers::tell_steps(supervisor::Snapshot snapshot) {
  const bool is_present = !is_over_ && snapshot.generation == static_cast<int>(generation_);
  if (!is_present || !handlers_.on_steps) return;
  for (auto& worker : snapshot.workers) worker.global_rank = first_rank_ + worker.local_rank;
  handlers_.on_steps(progress_.observe(options_.job_uuid, generation_, snapshot));
}

void NodeWorkers::say_parked(int generation, int store_port) {
  handlers_.on_parked(
      {.job_uuid = options_.job_uuid,
       .generation = static_cast<std::uint64_t>(generation),
       .store_endpoint = hosts_store_ ? endpoint_text(options_.address, store_port) : "",
       .failed_checks = {},
       .took = std::chrono::duration_cast<Milliseconds>(SteadyClock().now() - park_began_)});
}

// Once for each rank that there is.
void NodeWorkers::tell_exit(supervisor::WorkerExit exit) {
  const bool is_here = exit.local_rank >= 0 && exit.local_rank < num_ranks_;
  if (!is_here || !told_.insert(exit.local_rank).second) return;
  exit.global_rank = first_rank_ + exit.local_rank;
  handlers_.on_exited(
      {.job_uuid = options_.job_uuid, .generation = generation_, .step = exit.step, .exit = exit});
}

void NodeWorkers::tell_missing(const std::vector<supervisor::WorkerExit>& exits) {
  for (const supervisor::WorkerExit& exit : exits) {
    if (exit.generation == static_cast<int>(generation_)) tell_exit(exit);
  }
}

// Its last word. Without finish() it was its own: it held, and nobody came.
void NodeWorkers::end_shim(const supervisor::JobOutcome& outcome) {
  if (!is_over_) {
    tell_missing(outcome.exits);
    end_generation({.num_unkillable = shim_.num_unkillable()});
  }
  shim_.close();
  end_catching_up();
  if (is_finishing_) handlers_.on_finished();
}

void NodeWorkers::end_generation(const Left& left) {
  is_over_ = true;
  pids_.clear();
  if (!left.is_proved) {
    unproved_ = generation_;
    handlers_.on_notice(
        "whether all of it has ended cannot be seen, and the coordinator is not told so");
  }
  handlers_.on_gone({.job_uuid = options_.job_uuid,
                     .generation = generation_,
                     .num_unkillable = left.num_unkillable,
                     .is_proved = left.is_proved});
}

// ---- a shim that outlived its owner ----

void NodeWorkers::take_up(const HeldGeneration& held) {
  generation_ = held.generation;
  hosts_store_ = held.hosts_store;
  first_rank_ = held.first_rank;
  num_ranks_ = held.num_ranks;
  is_over_ = false;
  told_.clear();
  park_began_ = SteadyClock().now();
}

// The first snapshot was made before the events that nobody heard; the one that is asked for here stands behind them.
void NodeWorkers::adopt(std::unique_ptr<supervisor::WorkerHost> host, const HeldGeneration& held) {
  take_up(held);
  watch(std::move(host));
  num_snapshots_awaited_ = 2;
  shim_.request(supervisor::TakeSnapshot{});
  shim_.read();
}

void NodeWorkers::adopt_end(const HeldGeneration& held,
                            const std::vector<supervisor::WorkerExit>& exits,
                            const Left& left) {
  take_up(held);
  handlers_.on_adopted({});
  tell_missing(exits);
  if (told_.empty()) tell_lost(ErrorCode::kShimLost);
  end_generation(left);
  handlers_.on_caught_up();
}

void NodeWorkers::begin_from(const supervisor::Snapshot& snapshot) {
  num_snapshots_awaited_ = 1;
  const bool is_present = snapshot.generation == static_cast<int>(generation_);
  AdoptedGeneration adopted;
  if (is_present) {
    if (snapshot.lease_until != supervisor::BootTime::zero())
      lease_until_ = adopted.lease_until = supervisor::to_steady_time(snapshot.lease_until);
    adopted.is_prepared = snapshot.state == "prepared" || snapshot.state == "checking";
    for (const auto& worker : snapshot.workers) pids_.push_back(worker.is_alive ? worker.pid : 0);
  }
  handlers_.on_adopted(adopted);
  if (is_present) return;
  // The agent before this one was killed between its record and its order; the order before it is of no use any more.
  shim_.request(supervisor::StopGeneration{.generation = snapshot.generation,
                                           .mode = supervisor::StopMode::kKill,
                                           .grace = supervisor::Milliseconds(0)});
  end_generation({});
}

// What the agent before this one heard, and may have told nobody.
void NodeWorkers::catch_up(const supervisor::Snapshot& snapshot) {
  const bool is_present = snapshot.generation == static_cast<int>(generation_);
  if (!is_over_ && is_present) {
    tell_missing(snapshot.exits);
    if (snapshot.state == "prepared") say_parked(snapshot.generation, snapshot.store_port);
    if (snapshot.state == "parked") end_generation({});
  }
  end_catching_up();
}

void NodeWorkers::end_catching_up() {
  if (std::exchange(num_snapshots_awaited_, 0) > 0) handlers_.on_caught_up();
}

// The shim ended without a word; its host has killed what it found. To the coordinator: every worker failed here.
void NodeWorkers::lose_shim(const Error& error) {
  const Left left = {.num_unkillable = shim_.num_unkillable(), .is_proved = shim_.is_end_proved()};
  const bool was_finishing = is_finishing_;
  shim_.close();
  handlers_.on_notice(error.message());
  if (!is_over_) {
    tell_lost(error.code());
    end_generation(left);
  }
  end_catching_up();
  if (was_finishing) handlers_.on_finished();
}

void NodeWorkers::tell_lost(ErrorCode why) {
  supervisor::WorkerExit exit;
  exit.cause = supervisor::ExitCause::kLost;
  exit.exit_code = error_info(why).exit_status;
  exit.generation = static_cast<int>(generation_);
  // Of those whose ends are not known.
  while (told_.contains(exit.local_rank)) ++exit.local_rank;
  tell_exit(exit);
}

}  // namespace accel::agent

#include "agent/etcd/etcd_election.h"

#include <thread>
#include <utility>

#include <boost/asio/post.hpp>

#include "agent/etcd/etcd_state_store.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

using Answer = decltype(ElectionEvent::what);

constexpr std::chrono::seconds kStartLimit{5};
constexpr std::chrono::milliseconds kStartPause{100};

LeaderKey key_of(const EtcdClient::Holder& holder) {
  return {{printable(holder.value), holder.revision}, holder.lease};
}

Milliseconds ms_of(std::chrono::seconds seconds) {
  return seconds;
}

}  // namespace

Result<std::unique_ptr<EtcdElection>> EtcdElection::start(boost::asio::io_context& loop,
                                                          const EtcdSettings& etcd,
                                                          EtcdElectionOptions options,
                                                          Handlers handlers) {
  auto client = EtcdClient::make(etcd);
  if (!client) return std::move(client).error();
  // Machines start etcd and agents together, and slowly.
  const TimePoint give_up_at = SteadyClock().now() + kStartLimit;
  while (true) {
    auto looked = (*client)->look_at(leader_key(options.cluster));
    if (looked) break;
    const bool may_come = looked.error().code() == ErrorCode::kEtcdUnreachable;
    if (!may_come || SteadyClock().now() >= give_up_at)
      return std::move(looked).error().while_doing("asking etcd who hosts the coordinator");
    std::this_thread::sleep_for(kStartPause);
  }
  std::unique_ptr<EtcdElection> election(
      new EtcdElection(loop, *std::move(client), std::move(options), std::move(handlers)));
  election->handle(ElectionTick{});
  return election;
}

EtcdElection::EtcdElection(boost::asio::io_context& loop,
                           std::shared_ptr<EtcdClient> client,
                           EtcdElectionOptions options,
                           Handlers handlers)
    : loop_(loop),
      client_(std::move(client)),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      timer_(loop) {
  state_.config = options_.election;
  state_.own_address = options_.own_address;
}

EtcdElection::~EtcdElection() {
  *is_there_ = false;
  watch_.reset();
  calls_.join();
}

void EtcdElection::end(std::function<void()> done) {
  on_ended_ = std::move(done);
  handle(Quit{});
}

void EtcdElection::handle(decltype(ElectionEvent::what) what) {
  ElectionStep next = step(std::move(state_), {SteadyClock().now(), std::move(what)});
  state_ = std::move(next.state);
  for (const ElectionAction& action : next.actions) {
    std::visit([this](const auto& wanted) { carry_out(wanted); }, action);
  }
  schedule_tick();
}

void EtcdElection::schedule_tick() {
  timer_.expires_at(next_wake(state_));
  timer_.async_wait([this, is_there = is_there_](const boost::system::error_code& error) {
    if (!error && *is_there) handle(ElectionTick{});
  });
}

// ---- calls ----

template <typename Ask>
void EtcdElection::call(Ask ask) {
  boost::asio::post(calls_, [this, is_there = is_there_, client = client_, ask = std::move(ask)] {
    Answer answer = ask(*client);
    boost::asio::post(loop_, [this, is_there, answer = std::move(answer)] {
      if (*is_there) handle(answer);
    });
  });
}

void EtcdElection::carry_out(const Look& look) {
  call([look, key = leader_key(options_.cluster)](EtcdClient& client) -> Answer {
    const auto found = client.look_at(key);
    if (!found) return CallFailed{look.call, found.error().message()};
    Looked looked{look.call, {}, found->revision};
    if (found->holder) looked.key = key_of(*found->holder);
    return looked;
  });
}

void EtcdElection::carry_out(const Grant& grant) {
  term_.reset();
  opened_.reset();
  call([grant](EtcdClient& client) -> Answer {
    auto lease = client.grant(std::chrono::duration_cast<std::chrono::seconds>(grant.ttl));
    if (!lease) return CallFailed{grant.call, lease.error().message()};
    return Granted{grant.call, lease->id, ms_of(lease->ttl)};
  });
}

void EtcdElection::carry_out(const Campaign& campaign) {
  call([campaign, key = leader_key(options_.cluster), own = options_.own_address](
           EtcdClient& client) -> Answer {
    const auto holder = client.claim(key, own, campaign.lease);
    if (!holder) return CallFailed{campaign.call, holder.error().message()};
    if (holder->lease == campaign.lease) return Won{campaign.call, holder->revision};
    return CallFailed{campaign.call, "another agent was quicker"};
  });
}

void EtcdElection::carry_out(const Open& open) {
  auto reign = std::make_shared<std::optional<Reign>>();
  auto answered = [this, is_there = is_there_, reign](const Answer& answer) {
    if (!*is_there) return;
    if (*reign) opened_ = std::move(*reign);
    handle(answer);
  };
  boost::asio::post(
      calls_,
      [&loop = loop_,
       client = client_,
       cluster = options_.cluster,
       config = options_.coordinator,
       term = term_,
       open,
       reign,
       answered] {
        auto take = [&]() -> Result<Reign> {
          auto store = EtcdStateStore::open(client, cluster, open.epoch, term);
          if (!store) return std::move(store).error();
          auto taken = take_over(*std::move(store), open.epoch, config, SteadyClock().now());
          if (taken) taken->term = term;
          return taken;
        };
        auto taken = take();
        Answer answer = Opened{open.call};
        if (taken) {
          *reign = *std::move(taken);
        } else {
          answer = CallFailed{open.call, "cannot take over: " + taken.error().message()};
        }
        boost::asio::post(loop, [answered, answer] { answered(answer); });
      });
}

void EtcdElection::carry_out(const Revoke& revoke) {
  call([revoke](EtcdClient& client) -> Answer {
    auto done = client.revoke(revoke.lease);
    if (!done) return CallFailed{revoke.call, done.error().message()};
    return Revoked{revoke.call};
  });
}

void EtcdElection::carry_out(const KeepAlive& keep_alive) {
  call([keep_alive](EtcdClient& client) -> Answer {
    auto lease = client.keep_alive(keep_alive.lease);
    if (!lease) return KeepAliveFailed{keep_alive.call, lease.error().message()};
    return KeptAlive{keep_alive.call, ms_of(lease->ttl)};
  });
}

void EtcdElection::carry_out(const WatchKey& watch) {
  const auto tell = [this, is_there = is_there_](Answer answer) {
    boost::asio::post(loop_, [this, is_there, answer = std::move(answer)] {
      if (*is_there) handle(answer);
    });
  };
  EtcdWatch::Handlers handlers;
  handlers.on_event = [tell, id = watch.watch](const mvccpb::Event& event) {
    KeySeen seen{id, {}};
    if (event.type() == mvccpb::Event::PUT) seen.key = key_of(holder_in(event.kv()));
    tell(seen);
  };
  handlers.on_broken = [tell, id = watch.watch] { tell(WatchBroke{id}); };
  watch_.reset();
  watch_ = std::make_unique<EtcdWatch>(*client_,
                                       leader_key(options_.cluster),
                                       static_cast<std::int64_t>(watch.from_revision),
                                       std::move(handlers));
}

// ---- what the coordinator's host hears ----

void EtcdElection::carry_out(const Extend& extend) {
  if (term_) {
    term_->extend(extend.until);
  } else {
    term_ = std::make_shared<LeadTerm>(extend.until);
  }
}

void EtcdElection::carry_out(const Lead&) {
  if (!opened_) return;
  handlers_.on_lead(*std::exchange(opened_, std::nullopt));
}

void EtcdElection::carry_out(const Follow& follow) {
  if (term_) term_->end();
  handlers_.on_follow(follow.leader);
}

void EtcdElection::carry_out(const Tell& tell) {
  handlers_.on_line(tell.line);
}

void EtcdElection::carry_out(const Ended&) {
  timer_.cancel();
  if (on_ended_) boost::asio::post(loop_, std::exchange(on_ended_, nullptr));
}

}  // namespace accel::agent

// EtcdElection: carries out what the election's step function decides, against a real etcd.
//
// Threads:  constructed, used and destroyed on the loop; calls to etcd run on two threads of its own, the watch on a third.
// Source:   agent/coordinator/election/election.h has the table.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include "agent/coordinator/election/election.h"
#include "agent/etcd/etcd_client.h"

namespace accel::agent {

struct EtcdElectionOptions {
  std::string cluster;
  std::string own_address;  // by it the others reach this coordinator
  CoordinatorConfig coordinator;
  ElectionConfig election;
};

class EtcdElection {
 public:
  struct Handlers {
    std::function<void(Reign)> on_lead;
    std::function<void(const Leader&)> on_follow;     // also: leads no more
    std::function<void(const std::string&)> on_line;  // for the log
  };

  // Asks etcd for up to 5 s, so that a wrong endpoint is said at the start. Errors  those of EtcdClient.
  [[nodiscard]] static Result<std::unique_ptr<EtcdElection>> start(boost::asio::io_context& loop,
                                                                   const EtcdSettings& etcd,
                                                                   EtcdElectionOptions options,
                                                                   Handlers handlers);
  ~EtcdElection();

  // A write was refused, or an agent follows a higher epoch.
  void depose(const std::string& why) { handle(Deposed{why}); }

  // Gives the leadership up, if this agent has it, and takes no part any more. `done` comes within seconds.
  void end(std::function<void()> done);

 private:
  EtcdElection(boost::asio::io_context& loop,
               std::shared_ptr<EtcdClient> client,
               EtcdElectionOptions options,
               Handlers handlers);

  void handle(decltype(ElectionEvent::what) what);
  void schedule_tick();
  // Runs `ask` on a thread for calls, and gives what it returns to handle().
  template <typename Ask>
  void call(Ask ask);

  void carry_out(const Look& look);
  void carry_out(const Grant& grant);
  void carry_out(const Campaign& campaign);
  void carry_out(const Open& open);
  void carry_out(const Revoke& revoke);
  void carry_out(const KeepAlive& keep_alive);
  void carry_out(const WatchKey& watch);
  void carry_out(const Extend& extend);
  void carry_out(const Lead& lead);
  void carry_out(const Follow& follow);
  void carry_out(const Tell& tell);
  void carry_out(const Ended& ended);

  boost::asio::io_context& loop_;
  std::shared_ptr<EtcdClient> client_;
  EtcdElectionOptions options_;
  Handlers handlers_;
  ElectionState state_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<LeadTerm> term_;
  std::optional<Reign> opened_;  // waits for Lead
  std::unique_ptr<EtcdWatch> watch_;
  std::function<void()> on_ended_;
  // Answers that come after the end of this object are dropped.
  std::shared_ptr<bool> is_there_ = std::make_shared<bool>(true);
  boost::asio::thread_pool calls_{2};
};

}  // namespace accel::agent

// ClusterWatch: what the users of this agent follow of jobs of many nodes.
//
// One question at a time for all of them waits at the coordinator until something has changed (job_changes.h), whatever their
// number. Another job that is followed makes another question, which ends the one before.
//
//   idle --follow()--> asked --answer--> asked again
//                        '--error--> pause of 1 s --> asked again
//
// Threads:  everything on the loop.
// Source:   docs/internals/rendezvous.md, "Who follows a job".
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/cluster/cluster_client.h"
#include "agent/cluster/job_changes.h"

namespace accel::agent {

class ClusterWatch {
 public:
  struct Handlers {
    // First the job as it is, then as it is after a change; without `argv`.
    std::function<void(const v1::Job&)> on_job;
    // The coordinator does not know it, or not any more. Nothing follows.
    std::function<void()> on_gone;
    std::function<void(const Error&)> on_error;  // nobody answers; said once
    std::function<void()> on_recovered = {};     // somebody answers again
  };
  using Following = std::shared_ptr<void>;

  ClusterWatch(boost::asio::io_context& loop, ClusterClient& client);

  // Until the last copy of what it gives is gone. uuid  of the job; empty: all jobs.
  [[nodiscard]] Following follow(const std::string& uuid, Handlers handlers);

  // The client asks another coordinator now.
  void move_on() { ask(); }

 private:
  struct Follower {
    std::string uuid;
    Handlers handlers;
    std::map<std::string, std::string> told = {};  // by uuid: the job, serialized
    bool is_over = false;

    void tell(const v1::Job& job);
  };
  // The handlers may begin and end others.
  [[nodiscard]] std::vector<std::shared_ptr<Follower>> followers();
  void ask();
  void take(const Result<v1::JobChanges>& answer);
  void tell(const KnownViews::News& news);
  void tell_error(const Error& error);
  void ask_later();

  boost::asio::steady_timer pause_;
  ClusterClient& client_;
  std::vector<std::weak_ptr<Follower>> followers_;
  KnownViews views_;
  std::optional<Error> error_;   // the last answer
  std::uint64_t num_asked_ = 0;  // the answer to the last question counts
  const std::shared_ptr<char> alive_ = std::make_shared<char>();  // for what the loop still has
};

}  // namespace accel::agent

// TopFeed: what `accel top` hears from an agent, by a thread of its own: an agent that does not answer holds up nobody's keys.
//
// Threads:  the members from one thread; the feed has another one, which waits for the agent.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <accel/result.h>

#include "launcher/cluster/agents/agent_client.h"
#include "launcher/cluster/agents/top_processes.h"
#include "launcher/top/top_model.h"
#include "runtime/unique_fd.h"

namespace accel::cluster {

// The agent's part of a TopModel.
struct TopAnswer {
  std::vector<launcher::TopJob> jobs;
  std::string node;
  bool is_drained = false;
  std::string notice;
};

// All jobs that one may see, page by page. Memory and processors are those of this machine: is_local says that the agent is here.
// `on_call` is that of list_jobs().
[[nodiscard]] Result<TopAnswer> ask_for_jobs(
    const AgentClient& client,
    bool is_local,
    TopProcesses& processes,
    const std::function<void(grpc::ClientContext*)>& on_call = {});

struct TopNews {
  std::optional<TopAnswer> answer;
  std::optional<Error> failure;  // why there is none
  std::string message;           // what became of an order
  std::string not_stopped = {};  // uuid of a job whose order came to nothing for sure
};

class TopFeed {
 public:
  TopFeed(const AgentClient& client, bool is_local, std::chrono::milliseconds interval);
  // Cancels what it waits for.
  ~TopFeed();
  TopFeed(const TopFeed&) = delete;
  TopFeed& operator=(const TopFeed&) = delete;

  // Readable when there is news.
  [[nodiscard]] int fd() const noexcept { return ready_.get(); }
  [[nodiscard]] std::deque<TopNews> take();
  // Stops a job, or asks at once.
  // A question that waits already is not asked twice.
  void give(const launcher::TopOrder& order);

 private:
  void run();
  void tell(TopNews news);
  void begin_call(grpc::ClientContext* context);
  [[nodiscard]] TopNews carry_out(const launcher::TopOrder& order);
  [[nodiscard]] std::optional<launcher::TopOrder> next_order();

  const AgentClient& client_;
  const bool is_local_;
  const std::chrono::milliseconds interval_;
  UniqueFd ready_;
  TopProcesses processes_;  // of the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  grpc::ClientContext* call_ = nullptr;
  std::deque<launcher::TopOrder> orders_;
  std::deque<TopNews> news_;
  std::thread thread_;
};

}  // namespace accel::cluster

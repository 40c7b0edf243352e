#include "launcher/cluster/agents/top_feed.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/jobs/job_state.h"
#include "launcher/cluster/agents/alive_workers.h"
#include "launcher/cluster/agents/failed_stop.h"
#include "launcher/cluster/agents/job_list.h"
#include "runtime/clock.h"
#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::cluster {
namespace {

using launcher::TopJob;
using launcher::TopOrder;
using launcher::TopRank;

std::string exit_text(const v1::ExitInfo& exit) {
  if (exit.signal() > 0) return supervisor::signal_name(exit.signal());
  return "exit code " + std::to_string(exit.code());
}

TopRank rank_of(const v1::Worker& worker) {
  TopRank rank;
  rank.rank = worker.rank();
  rank.pid = worker.pid();
  if (worker.has_exit()) rank.ending = exit_text(worker.exit());
  if (worker.has_step()) rank.step = worker.step();
  if (worker.has_step_seconds()) rank.step_seconds = worker.step_seconds();
  return rank;
}

std::string node_text(const v1::JobNode& node) {
  const unsigned last = node.first_rank() + std::max(1U, node.count()) - 1;
  return node.node_id() + ": ranks " + std::to_string(node.first_rank()) + " to " +
         std::to_string(last) + (node.is_gone() ? " (gone)" : "");
}

TopJob top_job(const v1::Job& job, std::int64_t now_seconds) {
  TopJob top;
  top.id = job.job_id();
  top.uuid = job.job_uuid();
  top.state = agent::job_state_word(job.state());
  top.user = job.user();
  top.num_nodes = job.max_nodes() > 0 ? static_cast<unsigned>(job.nodes_size()) : 1;
  top.num_workers = num_alive(job);
  top.restarts = job.restarts();
  top.reason = job.reason();
  if (agent::has_ended(job)) top.exit_code = job.exit_code();
  if (job.has_started()) {
    const std::int64_t end = job.has_ended() ? job.ended().seconds() : now_seconds;
    top.elapsed = std::chrono::seconds(end - job.started().seconds());
  }
  for (const v1::Worker& worker : job.workers()) top.ranks.push_back(rank_of(worker));
  for (const v1::JobNode& node : job.nodes()) top.nodes.push_back(node_text(node));
  return top;
}

TopNews news_of(const FailedStop& failed, const TopOrder& order) {
  TopNews news;
  news.message = failed.message;
  if (failed.is_known) news.not_stopped = order.uuid;
  return news;
}

}  // namespace

Result<TopAnswer> ask_for_jobs(const AgentClient& client,
                               bool is_local,
                               TopProcesses& processes,
                               const std::function<void(grpc::ClientContext*)>& on_call) {
  v1::ListReq request;
  request.set_with_steps(true);
  const auto list = list_jobs(client, std::move(request), on_call);
  if (!list) return list.error();
  TopAnswer answer{.jobs = {},
                   .node = list->node_id(),
                   .is_drained = list->draining(),
                   .notice = list->notice()};
  using std::chrono::system_clock;
  const std::int64_t now_seconds = system_clock::to_time_t(system_clock::now());
  const TimePoint now = SteadyClock().now();
  for (const v1::Job& job : list->jobs()) {
    answer.jobs.push_back(top_job(job, now_seconds));
    if (is_local) processes.look_at(answer.jobs.back(), job.uid(), now);
  }
  processes.forget_others();
  return answer;
}

TopFeed::TopFeed(const AgentClient& client, bool is_local, std::chrono::milliseconds interval)
    : client_(client),
      is_local_(is_local),
      interval_(interval),
      ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

TopFeed::~TopFeed() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  changed_.notify_one();
  thread_.join();
}

void TopFeed::begin_call(grpc::ClientContext* context) {
  const std::lock_guard lock(mutex_);
  call_ = context;
  if (is_over_ && context != nullptr) context->TryCancel();
}

void TopFeed::tell(TopNews news) {
  {
    const std::lock_guard lock(mutex_);
    // Of answers that nobody has taken, as while a log is followed, the last one counts.
    if (!news_.empty() && news_.back().message.empty() && news.message.empty()) news_.pop_back();
    news_.push_back(std::move(news));
  }
  const std::uint64_t one = 1;
  (void)!::write(ready_.get(), &one, sizeof one);
}

std::deque<TopNews> TopFeed::take() {
  std::uint64_t count = 0;
  (void)!::read(ready_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void TopFeed::give(const TopOrder& order) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_refresh = order.kind == TopOrder::Kind::kRefresh;
    if (!is_refresh || orders_.empty()) orders_.push_back(order);
  }
  changed_.notify_one();
}

// The next one, or a refresh when the time has come; nothing at the end.
std::optional<TopOrder> TopFeed::next_order() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, interval_, [this] { return is_over_ || !orders_.empty(); });
  if (is_over_) return std::nullopt;
  if (orders_.empty()) return TopOrder{TopOrder::Kind::kRefresh, ""};
  TopOrder order = std::move(orders_.front());
  orders_.pop_front();
  return order;
}

// Sent once: a second StopJob would be meant as SIGKILL.
TopNews TopFeed::carry_out(const TopOrder& order) {
  v1::StopReq request;
  request.set_job(order.uuid);
  request.set_kill(order.kind == TopOrder::Kind::kKill);
  auto call = client_.begin();
  if (!call) return news_of({.message = "not stopped: " + call.error().message()}, order);
  v1::Job job;
  begin_call(call->context.get());
  const grpc::Status status = call->stub->StopJob(call->context.get(), request, &job);
  begin_call(nullptr);
  if (!status.ok())
    return news_of(failed_stop(status.error_code(), client_.to_error(status).message()), order);
  const std::string deed = request.kill() ? "killed with SIGKILL: " : "asked to stop: ";
  return {.answer = {},
          .failure = {},
          .message = deed + job.job_id() + ", now " + agent::job_state_word(job.state())};
}

void TopFeed::run() {
  for (std::optional<TopOrder> order = TopOrder{TopOrder::Kind::kRefresh, ""}; order;
       order = next_order()) {
    const bool is_stop =
        order->kind == TopOrder::Kind::kStop || order->kind == TopOrder::Kind::kKill;
    if (is_stop) tell(carry_out(*order));
    auto answer = ask_for_jobs(
        client_, is_local_, processes_, [this](grpc::ClientContext* call) { begin_call(call); });
    TopNews news;
    if (answer) {
      news.answer = *std::move(answer);
    } else {
      news.failure = answer.error();
    }
    tell(std::move(news));
  }
}

}  // namespace accel::cluster

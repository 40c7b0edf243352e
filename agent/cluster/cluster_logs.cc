#include "agent/cluster/cluster_logs.h"

#include <algorithm>

#include "agent/calls/grpc_status.h"
#include "agent/jobs/job_state.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kNodeRetry{200};
constexpr std::chrono::seconds kFarewell{10};  // from the job's end to the last output of its nodes
constexpr std::chrono::seconds kCoordinatorPatience{60};
constexpr std::size_t kMostNodes = 64;  // at a time: each may have 64 KiB waiting here

}  // namespace

ClusterLogs::ClusterLogs(asio::io_context& loop,
                         ClusterClient& client,
                         std::shared_ptr<LogStream> sink,
                         v1::PartLogsReq request)
    : loop_(loop),
      client_(client),
      sink_(std::move(sink)),
      request_(std::move(request)),
      pause_(loop) {}

void ClusterLogs::begin(const v1::Job& job) {
  // Each keeps the other until the stream is over.
  auto self = shared_from_this();
  sink_->feed([self] { self->pump(); }, [self] { self->close(); });
  heard_at_ = SteadyClock().now();
  last_ = job;
  take(last_);
}

void ClusterLogs::close() {
  pause_.cancel();
  for (auto& [node, source] : sources_) {
    if (source.logs) source.logs->cancel();
    source.logs.reset();
  }
  ready_.clear();
}

bool ClusterLogs::wants(const v1::JobNode& node) const {
  const auto& ranks = request_.request().ranks();
  return ranks.empty() || std::any_of(ranks.begin(), ranks.end(), [&](std::uint32_t rank) {
           return rank >= node.first_rank() && rank < node.first_rank() + node.count();
         });
}

std::size_t ClusterLogs::num_open() const {
  return static_cast<std::size_t>(
      std::count_if(sources_.begin(), sources_.end(), [](const auto& entry) {
        return entry.second.logs != nullptr;
      }));
}

void ClusterLogs::take(const v1::Job& job) {
  generation_ = job.generation();
  for (const v1::JobNode& node : job.nodes()) {
    if (node.is_gone() || !wants(node)) continue;
    const auto known = sources_.find(node.node_id());
    // A node that went out of the job may come back in a later generation.
    const bool is_settled =
        known != sources_.end() && (known->second.logs || generation_ <= known->second.over_in);
    if (!is_settled) open(node, job.generation());
  }
  if (!request_.request().follow() || has_ended(job)) {
    is_last_look_ = true;
    give_up_at_ = SteadyClock().now() + kFarewell;
  }
  look_later();
  pump();
}

void ClusterLogs::open(const v1::JobNode& node, std::uint64_t generation) {
  const bool is_again = sources_.contains(node.node_id());
  if (num_open() >= kMostNodes) {
    if (!std::exchange(said_too_many_, true)) {
      say("only " + std::to_string(kMostNodes) +
          " nodes are shown at a time; `accel logs --rank N` shows one of the others");
    }
    return;
  }
  Source& source = sources_[node.node_id()];
  if (node.endpoint().empty()) {
    source.over_in = generation;
    return say("the agent of node " + node.node_id() +
               " listens nowhere: its output stays in its log_dir");
  }
  v1::PartLogsReq request = request_;
  if (is_again) request.set_from_generation(generation);
  source.logs = client_.logs(
      node.endpoint(),
      request,
      {.on_chunk =
           [self = shared_from_this(), id = node.node_id()](v1::LogChunk chunk) {
             Source& from = self->sources_[id];
             from.shown = std::max(from.shown, chunk.generation());
             self->ready_.emplace_back(std::move(chunk), from.logs);
             self->pump();
           },
       .on_end = [self = shared_from_this(), id = node.node_id(), generation](
                     const grpc::Status& status) { self->on_end(id, generation, status); }});
}

void ClusterLogs::on_end(const std::string& node,
                         std::uint64_t generation,
                         const grpc::Status& status) {
  Source& source = sources_[node];
  source.logs.reset();
  // It may have shown more than the job's state, which is asked for now and then, speaks of.
  source.over_in = std::max({generation, generation_, source.shown});
  if (!status.ok()) {
    const std::string& text = status.error_message();
    say("no more output from node " + node + ": " + text.substr(0, text.find('\n')));
  }
  pump();
}

void ClusterLogs::say(const std::string& text) {
  if (!sink_->is_open()) return;
  v1::LogChunk chunk;
  chunk.set_stream(v1::STREAM_ERR);
  chunk.set_notice(text);
  ready_.emplace_back(std::move(chunk), nullptr);
}

void ClusterLogs::pump() {
  if (!sink_->is_open()) return;
  while (!ready_.empty() && sink_->is_idle()) {
    auto [chunk, from] = std::move(ready_.front());
    ready_.pop_front();
    sink_->send(std::move(chunk));
    if (from) from->next();
  }
  if (is_last_look_ && ready_.empty() && num_open() == 0) sink_->finish(grpc::Status::OK);
}

void ClusterLogs::look_later() {
  pause_.expires_after(kNodeRetry);
  pause_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error && self->sink_->is_open()) self->look();
  });
}

void ClusterLogs::look() {
  if (is_last_look_) {
    if (SteadyClock().now() < give_up_at_) return look_later();
    for (auto& [node, source] : sources_) {
      if (!source.logs) continue;
      source.logs->cancel();
      source.logs.reset();
      say("node " + node + " did not send all its output");
    }
    return pump();
  }
  v1::JobsReq request;
  request.set_job(request_.request().job());
  request.set_known(digest_);
  *request.mutable_who() = request_.who();  // whose turn it takes
  client_.jobs(request, [self = shared_from_this()](const Result<v1::JobList>& list) {
    if (!self->sink_->is_open()) return;
    if (list && (list->is_unchanged() || list->jobs_size() == 1)) {
      self->heard_at_ = SteadyClock().now();
      self->digest_ = list->digest();
      if (!list->is_unchanged()) self->last_ = list->jobs(0);
      return self->take(self->last_);
    }
    if (SteadyClock().now() < self->heard_at_ + kCoordinatorPatience) return self->look_later();
    self->sink_->finish(to_status(
        list ? Error(ErrorCode::kCoordinatorLost, "the coordinator knows nothing of this job")
             : list.error()));
  });
}

}  // namespace accel::agent

#include "agent/cluster/cluster_logs.h"

#include <algorithm>

#include "agent/calls/grpc_status.h"
#include "agent/jobs/job_state.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kFarewell{10};  // from the job's end to the last output of its nodes
constexpr std::chrono::seconds kCoordinatorPatience{60};
constexpr std::size_t kMostNodes = 64;  // at a time: each may have 64 KiB waiting here

}  // namespace

ClusterLogs::ClusterLogs(asio::io_context& loop,
                         ClusterClient& client,
                         ClusterWatch& watch,
                         std::shared_ptr<LogStream> sink,
                         v1::PartLogsReq request)
    : loop_(loop),
      client_(client),
      watch_(watch),
      sink_(std::move(sink)),
      request_(std::move(request)),
      limit_(loop) {}

void ClusterLogs::begin(const v1::Job& job) {
  // Each keeps the other until the stream is over.
  auto self = shared_from_this();
  sink_->feed([self] { self->pump(); }, [self] { self->close(); });
  if (request_.request().follow()) follow();
  take(job);
}

void ClusterLogs::follow() {
  const auto weak = weak_from_this();
  const auto while_open = [weak](const std::function<void(ClusterLogs&)>& deed) {
    const auto self = weak.lock();
    if (self && self->sink_->is_open() && !self->is_last_look_) deed(*self);
  };
  following_ = watch_.follow(request_.request().job(),
                             {.on_job =
                                  [while_open](const v1::Job& job) {
                                    while_open([&](ClusterLogs& self) { self.take(job); });
                                  },
                              .on_gone =
                                  [while_open] {
                                    while_open([](ClusterLogs& self) {
                                      self.sink_->finish(to_status(Error(
                                          ErrorCode::kCoordinatorLost,
                                          "the coordinator knows nothing of this job any more")));
                                    });
                                  },
                              .on_error =
                                  [while_open](const Error& why) {
                                    while_open([&](ClusterLogs& self) { self.give_up_later(why); });
                                  },
                              .on_recovered =
                                  [while_open] {
                                    while_open([](ClusterLogs& self) {
                                      self.is_unheard_ = false;
                                      self.limit_.cancel();
                                    });
                                  }});
}

void ClusterLogs::give_up_later(const Error& why) {
  if (std::exchange(is_unheard_, true)) return;
  limit_.expires_after(kCoordinatorPatience);
  limit_.async_wait([self = shared_from_this(), why](const boost::system::error_code& error) {
    if (!error && self->sink_->is_open()) self->sink_->finish(to_status(why));
  });
}

void ClusterLogs::close() {
  limit_.cancel();
  following_.reset();
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

void ClusterLogs::take(v1::Job job) {
  job_ = std::move(job);
  open_missing();
  if (!request_.request().follow() || has_ended(job_)) say_farewell();
  pump();
}

// Also after the end of another node's output, which makes room.
void ClusterLogs::open_missing() {
  if (is_last_look_) return;
  for (const v1::JobNode& node : job_.nodes()) {
    if (node.is_gone() || !wants(node)) continue;
    const auto known = sources_.find(node.node_id());
    // A node that went out of the job may come back in a later generation.
    const bool is_settled = known != sources_.end() &&
                            (known->second.logs || job_.generation() <= known->second.over_in);
    if (!is_settled) open(node, job_.generation());
  }
}

// Nodes may still send for a while.
void ClusterLogs::say_farewell() {
  is_last_look_ = true;
  following_.reset();
  limit_.expires_after(kFarewell);
  limit_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error || !self->sink_->is_open()) return;
    for (auto& [node, source] : self->sources_) {
      if (!source.logs) continue;
      source.logs->cancel();
      source.logs.reset();
      self->say("node " + node + " did not send all its output");
    }
    self->pump();
  });
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
  // It may have shown more than the job's view speaks of yet.
  source.over_in = std::max({generation, job_.generation(), source.shown});
  if (!status.ok()) {
    const std::string& text = status.error_message();
    say("no more output from node " + node + ": " + text.substr(0, text.find('\n')));
  }
  open_missing();
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

}  // namespace accel::agent

#include "agent/log_stream.h"

#include <chrono>
#include <utility>

#include <boost/asio/post.hpp>

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxQueuedChunks = 4;
// Between looks at files that have nothing new.
constexpr std::chrono::milliseconds kNothingNewPause{50};

}  // namespace

LogStream::LogStream(asio::io_context& loop, asio::thread_pool& files)
    : QueuedStream(loop, kMaxQueuedChunks), files_(files), pause_(loop) {}

void LogStream::begin(LogReader::Source source, std::function<Standing()> standing) {
  standing_ = std::move(standing);
  source_ = std::move(source);
  look();
}

void LogStream::feed(std::function<void()> on_idle, std::function<void()> on_over) {
  on_idle_ = std::move(on_idle);
  on_over_ = std::move(on_over);
}

void LogStream::on_written() {
  if (standing_) return look();
  if (on_idle_) on_idle_();
}

void LogStream::on_closed() {
  pause_.cancel();
  on_idle_ = nullptr;
  if (const auto on_over = std::exchange(on_over_, nullptr)) on_over();
}

// Reads on the thread for files, and comes back to the loop with what was there.
void LogStream::look() {
  if (!is_open() || !is_idle()) return;
  const Standing standing = standing_();
  auto self = std::static_pointer_cast<LogStream>(shared_from_this());
  asio::post(files_, [self, standing] {
    if (!self->reader_) self->reader_ = std::make_unique<LogReader>(std::move(self->source_));
    auto chunk = self->reader_->next(standing.generation);
    self->post([self, standing, chunk = std::move(chunk)](auto&) mutable {
      self->give(std::move(chunk), standing);
    });
  });
}

void LogStream::give(std::optional<v1::LogChunk> chunk, const Standing& standing) {
  if (!is_open()) return;
  if (chunk) {
    chunk->set_rank(chunk->rank() + static_cast<std::uint32_t>(standing.first_rank));
    return send(*std::move(chunk));
  }
  if (standing.is_last_look) return finish(grpc::Status::OK);
  pause_.expires_after(kNothingNewPause);
  pause_.async_wait([self = std::static_pointer_cast<LogStream>(shared_from_this())](auto error) {
    if (!error) self->look();
  });
}

}  // namespace accel::agent

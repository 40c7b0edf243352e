#include "agent/logs/log_stream.h"

#include <chrono>
#include <optional>
#include <utility>

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxQueuedChunks = 4;
// Between looks at files that have nothing new.
constexpr std::chrono::milliseconds kNothingNewPause{50};

}  // namespace

// Where a read may hang, the stream does not: of one that is over this is left.
struct LogStream::Reading {
  explicit Reading(LogReader::Source from) : owner(from.owner), source(std::move(from)) {}

  void read(int generation) {
    if (!reader) reader = std::make_unique<LogReader>(std::move(source));
    chunk = reader->next(generation);
  }

  const uid_t owner;
  LogReader::Source source;
  std::unique_ptr<LogReader> reader;
  std::optional<v1::LogChunk> chunk;
};

LogStream::LogStream(asio::io_context& loop, FileReaders& files)
    : QueuedStream(loop, kMaxQueuedChunks), files_(files), pause_(loop) {}

void LogStream::begin(LogReader::Source source, std::function<Standing()> standing) {
  standing_ = std::move(standing);
  reading_ = std::make_shared<Reading>(std::move(source));
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

// Reads beside the loop, and comes back to it with what was there.
void LogStream::look() {
  if (!is_open() || !is_idle()) return;
  const Standing standing = standing_();
  auto self = std::static_pointer_cast<LogStream>(shared_from_this());
  files_.add(
      reading_->owner,
      [reading = reading_, generation = standing.generation] { reading->read(generation); },
      [self, standing] {
        self->give(std::exchange(self->reading_->chunk, std::nullopt), standing);
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

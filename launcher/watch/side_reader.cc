// What is called on the loop stays in one map of the loop's side: it may hold what is not to be destroyed on another thread.

#include "launcher/watch/side_reader.h"

#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <boost/asio/post.hpp>
#include <pthread.h>

namespace accel::launcher {
namespace {

std::string failure_of(const std::function<void()>& read) {
  try {
    read();
    return {};
  } catch (const std::exception& thrown) {  // no memory, a broken file
    return thrown.what();
  }
}

}  // namespace

struct SideReader::Shared {
  struct Read {
    std::uint64_t number = 0;
    std::function<void()> call;
  };

  std::mutex mutex;
  boost::asio::io_context* loop = nullptr;  // nullptr: nobody waits any more
  std::deque<Read> reads;                   // that wait
  bool has_thread = false;

  // Of the loop's thread alone.
  std::map<std::uint64_t, Done> done;
  std::uint64_t next_number = 0;
};

SideReader::SideReader(boost::asio::io_context& loop) : shared_(std::make_shared<Shared>()) {
  shared_->loop = &loop;
}

SideReader::~SideReader() {
  {
    const std::scoped_lock lock(shared_->mutex);
    shared_->loop = nullptr;
    shared_->reads.clear();
  }
  shared_->done.clear();
}

void SideReader::add(std::function<void()> read, Done done) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->reads.size() >= kMostWaiting) {
    lock.unlock();
    return done("the file system has not answered those who asked before");
  }
  if (!shared_->has_thread) {
    try {
      std::thread([shared = shared_] { work(shared); }).detach();
      shared_->has_thread = true;
    } catch (const std::system_error& full) {
      lock.unlock();
      return done(std::string("no thread can be started to read it: ") + full.what());
    }
  }
  const std::uint64_t number = shared_->next_number++;
  shared_->done.emplace(number, std::move(done));
  shared_->reads.push_back({number, std::move(read)});
}

void SideReader::work(const std::shared_ptr<Shared>& shared) {
  ::pthread_setname_np(::pthread_self(), "accel-files");
  std::unique_lock lock(shared->mutex);
  while (!shared->reads.empty()) {
    Shared::Read next = std::move(shared->reads.front());
    shared->reads.pop_front();
    lock.unlock();
    const std::string failure = failure_of(next.call);
    next.call = nullptr;
    lock.lock();
    if (shared->loop == nullptr) return;
    boost::asio::post(*shared->loop, [shared, failure, number = next.number] {
      const auto done = shared->done.extract(number);
      if (done) done.mapped()(failure);
    });
  }
  shared->has_thread = false;
}

}  // namespace accel::launcher

// Threads begin when there is more to read than idle ones, and then wait for more. What is called on the loop
// stays in one map of the loop's side: it may hold what is not to be destroyed on another thread.

#include "agent/files/file_readers.h"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <boost/asio/post.hpp>
#include <pthread.h>

#include "agent/access/caller_shares.h"
#include "agent/access/fair_queue.h"

namespace accel::agent {

struct FileReaders::Shared {
  struct Read {
    std::uint64_t number = 0;
    std::function<void()> call;
  };

  std::mutex mutex;
  std::condition_variable changed;
  boost::asio::io_context* loop = nullptr;  // nullptr: nobody waits any more
  FairQueue<Read> reads{1};
  int most_threads = 1;
  int num_threads = 0;
  int num_idle = 0;

  // Of the loop's thread alone.
  std::map<std::uint64_t, std::function<void()>> done;
  std::uint64_t next_number = 0;
};

FileReaders::FileReaders(boost::asio::io_context& loop, int most_threads)
    : shared_(std::make_shared<Shared>()) {
  shared_->loop = &loop;
  shared_->most_threads = most_threads;
}

FileReaders::~FileReaders() {
  {
    const std::scoped_lock lock(shared_->mutex);
    shared_->loop = nullptr;
  }
  shared_->changed.notify_all();
  shared_->done.clear();
}

void FileReaders::add(uid_t user, std::function<void()> read, std::function<void()> done) {
  const std::uint64_t number = shared_->next_number++;
  shared_->done.emplace(number, std::move(done));
  const std::scoped_lock lock(shared_->mutex);
  shared_->reads.push(caller_of(user), {number, std::move(read)});
  shared_->changed.notify_one();
  // Whoever may begin has a thread, as long as there are any: the read that another one takes may hang.
  const bool has_thread = shared_->reads.num_ready() <= shared_->num_idle;
  if (has_thread || shared_->num_threads >= shared_->most_threads) return;
  try {
    std::thread([shared = shared_] { work(shared); }).detach();
    ++shared_->num_threads;
    ++shared_->num_idle;
  } catch (const std::system_error&) {
    // One that is there takes it, or the next add() tries again.
  }
}

void FileReaders::work(const std::shared_ptr<Shared>& shared) {
  ::pthread_setname_np(::pthread_self(), "accel-files");
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock,
                         [&] { return shared->loop == nullptr || shared->reads.num_ready() > 0; });
    --shared->num_idle;
    if (shared->loop == nullptr) return;
    auto next = shared->reads.take();
    lock.unlock();
    next->work.call();
    next->work.call = nullptr;
    lock.lock();
    ++shared->num_idle;
    shared->reads.done(next->caller);
    if (shared->loop == nullptr) return;
    boost::asio::post(*shared->loop, [shared, number = next->work.number] {
      const auto done = shared->done.extract(number);
      if (done) done.mapped()();
    });
  }
}

}  // namespace accel::agent

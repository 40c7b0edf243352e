#include "agent/rendezvous/record_writer.h"

#include <utility>

#include <boost/asio/post.hpp>

namespace accel::agent {

RecordWriter::RecordWriter(boost::asio::io_context& loop, std::unique_ptr<StateStore> store)
    : loop_(loop), store_(std::move(store)), thread_([this] { run(); }) {}

RecordWriter::~RecordWriter() {
  *is_heard_ = false;
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void RecordWriter::write(Record record, bool sync, Answer answer) {
  {
    const std::scoped_lock lock(mutex_);
    if (is_closing_) return;
    queue_.push_back({std::move(record), sync, std::move(answer)});
  }
  changed_.notify_one();
}

void RecordWriter::close(std::function<void()> done) {
  *is_heard_ = false;
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    done_ = std::move(done);
  }
  changed_.notify_one();
}

void RecordWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_closing_ || !queue_.empty(); });
    if (queue_.empty()) break;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    auto written = store_->write(job.record, job.sync);
    boost::asio::post(
        loop_,
        [is_heard = is_heard_, answer = std::move(job.answer), written = std::move(written)] {
          if (*is_heard) answer(written);
        });
    lock.lock();
  }
  if (done_) boost::asio::post(loop_, std::move(done_));
}

}  // namespace accel::agent

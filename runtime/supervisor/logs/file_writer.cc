#include "runtime/supervisor/logs/file_writer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <string>
#include <system_error>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <unistd.h>

#include "runtime/supervisor/kernel/exhausted.h"
#include "runtime/supervisor/logs/log_file.h"

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;
using std::chrono::steady_clock;

Result<void> create_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::system_category());
  }
  if (!error) return {};
  return Error(ErrorCode::kLogUnwritable,
               "cannot write logs below " + folder.string() + ": " + errno_text(error.value()));
}

}  // namespace

struct FileWriter::Entry {
  Entry(std::shared_ptr<FileStage> its_stage,
        asio::posix::stream_descriptor its_pipe,
        FileWriter& writer)
      : stage(std::move(its_stage)),
        file(stage->path, stage->rotation, writer.notices_, steady_clock::now(), stage->duplicate),
        pipe(std::move(its_pipe)) {}

  std::shared_ptr<FileStage> stage;
  LogFile file;
  asio::posix::stream_descriptor pipe;
};

Result<std::shared_ptr<FileWriter>> FileWriter::start(const std::filesystem::path& folder,
                                                      int num_threads,
                                                      std::shared_ptr<NoticeBoard> notices,
                                                      std::chrono::milliseconds limit,
                                                      std::function<void()> before_portion) {
  auto writer = std::make_shared<FileWriter>(std::move(notices), std::move(before_portion));
  auto created = std::make_shared<std::promise<Result<void>>>();
  auto outcome = created->get_future();
  asio::post(writer->io_, [folder, created] { created->set_value(create_folder(folder)); });
  for (int i = 0; i < num_threads; ++i) {
    writer->threads_.emplace_back().start("accel-logfiles", [writer] { writer->io_.run(); });
  }
  if (outcome.wait_for(limit) != std::future_status::ready) {
    writer->finish();
    return Error(ErrorCode::kLogUnwritable,
                 "the file system of " + folder.string() + " did not answer within " +
                     std::to_string(limit.count()) + " ms");
  }
  if (Result<void> result = outcome.get(); !result) {
    writer->finish();
    return std::move(result).error();
  }
  return writer;
}

FileWriter::FileWriter(std::shared_ptr<NoticeBoard> notices, std::function<void()> before_portion)
    : notices_(std::move(notices)),
      before_portion_(std::move(before_portion)),
      work_(asio::make_work_guard(io_)) {
  const asio::posix::stream_descriptor first(
      io_);  // opens the reactor's descriptors, or throws, now
}

Result<void> FileWriter::add(std::shared_ptr<FileStage> stage) {
  asio::posix::stream_descriptor pipe(io_);
  boost::system::error_code error;
  pipe.assign(stage->read_end.get(), error);
  if (error) return exhausted_error("cannot write " + stage->path.string(), error.value());
  (void)stage->read_end.release();
  asio::post(io_, [this, stage = std::move(stage), pipe = std::move(pipe)]() mutable {
    serve(std::make_shared<Entry>(std::move(stage), std::move(pipe), *this));
  });
  return {};
}

void FileWriter::make_folder(std::filesystem::path folder) {
  asio::post(io_, [folder = std::move(folder)] {
    std::error_code ignored;  // whoever writes there reports it
    std::filesystem::create_directories(folder, ignored);
  });
}

void FileWriter::finish() {
  asio::post(io_, [this] { work_.reset(); });
}

bool FileWriter::wait_until(TimePoint deadline) const {
  return std::all_of(threads_.begin(), threads_.end(), [deadline](const WriterThread& thread) {
    return thread.wait_until(deadline);
  });
}

void FileWriter::when_done(const std::function<void()>& on_done) const {
  for (const WriterThread& thread : threads_) thread.when_done(on_done);
}

void FileWriter::serve(const std::shared_ptr<Entry>& entry) {
  if (before_portion_) before_portion_();
  const std::uint64_t before = entry->file.taken();
  const LogFile::Taken taken =
      entry->file.take_from(entry->pipe.native_handle(), steady_clock::now());
  progress_ += entry->file.taken() - before;

  switch (taken) {
    case LogFile::Taken::kSome:  // let the other files have their turn
      asio::post(io_, [this, entry] { serve(entry); });
      break;
    case LogFile::Taken::kNothing:
      entry->pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, entry](const boost::system::error_code&) { serve(entry); });
      break;
    case LogFile::Taken::kEnd:
      entry->file.finish(entry->stage->dropped_at_end);
      break;
  }
}

}  // namespace accel::supervisor

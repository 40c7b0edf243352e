// LogRouterTest: a router with real pipes and files. The test plays the workers by writing into their
// descriptors, and the owner's console by a pipe that is read or not.
#pragma once

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/supervisor/logs/log_layout.h"
#include "runtime/supervisor/logs/log_router.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor {

using namespace std::chrono_literals;

inline constexpr auto kGenerous = 60s;  // a bound for waits that succeed at once

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline bool wait_for(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kGenerous;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Stands for the owner's stdout or stderr: a pipe, with a thread that reads it when asked to.
class FakeConsole {
 public:
  FakeConsole() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }
  ~FakeConsole() {
    write_end_.reset();
    if (reader_.joinable()) reader_.join();
  }

  [[nodiscard]] int fd() const { return write_end_.get(); }

  void read_along() {
    reader_ = std::thread([this] {
      char buffer[65536];
      for (ssize_t got = 0; (got = ::read(read_end_.get(), buffer, sizeof buffer)) > 0;) {
        const std::lock_guard lock(mutex_);
        text_.append(buffer, static_cast<std::size_t>(got));
      }
    });
  }
  void hang_up() { read_end_.reset(); }

  // Ends a writer that was given up and still uses its descriptor, which therefore stays open.
  void leave_to_writer() {
    (void)write_end_.release();
    hang_up();
  }

  [[nodiscard]] std::string so_far() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

  // Everything, once nobody writes any more.
  [[nodiscard]] std::string all() {
    write_end_.reset();
    if (!reader_.joinable()) read_along();
    reader_.join();
    return text_;
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  std::thread reader_;
  std::mutex mutex_;
  std::string text_;
};

class LogRouterTest : public ::testing::Test {
 protected:
  LogRouterTest() { options_.job_id = "job"; }

  void start(int num_workers) {
    options_.owner_out = out_.fd();
    options_.owner_err = err_.fd();
    for (int rank = 0; rank < num_workers; ++rank) {
      WorkerSpec worker = worker_;
      worker.local_rank = rank;
      worker.global_rank = rank;
      options_.workers.push_back(worker);
    }
    auto started = LogRouter::start(options_);
    ASSERT_TRUE(started) << started.error().what();
    router_ = *std::move(started);
  }

  WorkerStdio open(int rank, int generation = 0) {
    auto stdio = router_->open(rank, generation);
    EXPECT_TRUE(stdio) << stdio.error().what();
    return *std::move(stdio);
  }

  void drain(int rank) {
    std::promise<void> done;
    router_->drain(rank, [&done] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(kGenerous), std::future_status::ready);
  }

  bool close() { return router_->close(kGenerous); }

  std::filesystem::path log_of(int rank, Stream stream, int generation = 0) {
    return LogLayout(folder_.path(), "job").stream_file(rank, generation, stream);
  }

  static void say(const UniqueFd& fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd.get(), text.data(), text.size());
      ASSERT_GT(written, 0) << std::strerror(errno);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  test::ScratchFolder folder_;
  FakeConsole out_;
  FakeConsole err_;
  WorkerSpec worker_;
  LogRouterOptions options_;
  std::unique_ptr<LogRouter> router_;
};

// Random bytes: no text, no newlines to rely on.
inline std::string random_bytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525U + 1013904223U;
    byte = static_cast<char>(seed >> 24U);
  }
  return bytes;
}

}  // namespace accel::supervisor

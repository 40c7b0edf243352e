#include "runtime/supervisor/spawn/preflight.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/printable.h"

namespace accel::supervisor {
namespace {

constexpr std::size_t kKeptBytes = 4096;
constexpr int kKeptLines = 3;

// Ends of lines, those at the end left out, become " | ".
std::string last_lines(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  std::size_t begin = text.size();
  for (int line = 0; line < kKeptLines && begin != std::string::npos && begin > 0; ++line) {
    begin = text.rfind('\n', begin - 1);
  }
  if (begin != std::string::npos && begin < text.size()) text.erase(0, begin + 1);
  std::string shown;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    shown += (at == 0 ? "" : " | ") + text.substr(at, end - at);
    at = end + 1;
  }
  return printable(shown);
}

std::string describe(const ExecFailure& failure, const std::string& folder) {
  const std::string where = failure.stage == "chdir" ? " to " + printable(folder) : "";
  return "could not be started (" + failure.stage + where + ": " +
         errno_text(failure.error_number) + ")";
}

}  // namespace

Preflight::Preflight(boost::asio::io_context& context,
                     System& system,
                     const std::vector<PreflightCheck>& checks,
                     SpawnRequest base,
                     std::function<void(Result<void>)> done)
    : context_(context),
      system_(system),
      checks_(checks),
      request_(std::move(base)),
      done_(std::move(done)),
      output_(context),
      limit_(context) {}

Preflight::~Preflight() {
  *is_alive_ = false;
  kill();
}

void Preflight::start() {
  run_next();
}

void Preflight::run_next() {
  if (at_ == checks_.size()) return finish({});
  tail_.clear();
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail(describe({"pipe2", errno}, ""));
  UniqueFd read_end(pipe[0]);
  const UniqueFd write_end(pipe[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing || ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK) != 0)
    return fail(describe({"/dev/null", errno}, ""));
  request_.argv = check().argv;
  request_.stdio[0] = nothing.get();
  request_.stdio[1] = request_.stdio[2] = write_end.get();
  SpawnResult spawned = spawn(request_);
  if (const auto* failure = std::get_if<ExecFailure>(&spawned))
    return fail(describe(*failure, request_.cwd));
  process_ = std::get<SpawnedProcess>(std::move(spawned));
  output_.assign(read_end.release());
  read();
  limit_.expires_after(check().limit);
  limit_.async_wait([this](const boost::system::error_code& error) {
    if (!error) on_limit();
  });
}

void Preflight::read() {
  output_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                     [this, alive = is_alive_](const boost::system::error_code& error) {
                       if (error || !*alive) return;
                       read_what_is_there();
                       if (output_.is_open()) read();
                     });
}

void Preflight::read_what_is_there() {
  std::array<char, 16 * 1024> buffer{};
  // Bounded: a check that never stops writing must not keep the loop.
  for (int turn = 0; turn < 16; ++turn) {
    const ssize_t got = ::read(output_.native_handle(), buffer.data(), buffer.size());
    if (got < 0) return;
    if (got == 0) {  // closed by all who write; its end is told by the kernel
      boost::system::error_code ignored;
      output_.close(ignored);
      return;
    }
    tail_.append(buffer.data(), static_cast<std::size_t>(got));
    if (tail_.size() > kKeptBytes) tail_.erase(0, tail_.size() - kKeptBytes);
  }
}

bool Preflight::take_end(pid_t pid) {
  if (!process_ || process_->pid() != pid) return false;
  limit_.cancel();
  if (output_.is_open()) read_what_is_there();
  const auto failure = process_->exec_failure();
  system_.signal_group(pid, SIGKILL);  // its number is still its own
  const auto status = reap_child(pid);
  process_.reset();
  boost::system::error_code ignored;
  output_.close(ignored);
  if (failure) {
    fail(describe(*failure, request_.cwd));
  } else if (!status || status->code != CLD_EXITED) {
    fail("was ended by signal " + std::to_string(status ? status->status : 0));
  } else if (status->status != 0) {
    fail("ended with exit code " + std::to_string(status->status));
  } else {
    ++at_;
    run_next();
  }
  return true;
}

void Preflight::on_limit() {
  if (output_.is_open()) read_what_is_there();
  kill();
  process_.reset();  // reaped by whoever sweeps
  const double seconds = static_cast<double>(check().limit.count()) / 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds);
  fail("took longer than its limit of " + std::string(text) + " s");
}

void Preflight::kill() {
  if (!process_) return;
  if (system_.signal_group(process_->pid(), SIGKILL) != 0)
    system_.signal_process(process_->pidfd(), SIGKILL);
}

void Preflight::fail(const std::string& why) {
  const std::string lines = last_lines(tail_);
  finish(Error(ErrorCode::kPreflightFailed,
               "preflight check '" + check().name + "' " + why +
                   (lines.empty() ? "" : "; its last lines: " + lines)));
}

// Not from within: the caller may drop us in it.
void Preflight::finish(Result<void> result) {
  limit_.cancel();
  boost::asio::post(context_,
                    [alive = is_alive_, done = done_, result = std::move(result)]() mutable {
                      if (*alive) done(std::move(result));
                    });
}

}  // namespace accel::supervisor

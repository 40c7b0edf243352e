#include "agent/jobs/diagnosis.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "runtime/printable.h"

namespace accel::agent {
namespace {

constexpr std::size_t kMostStacks = 256;

// The lines of /proc/PID/status that tell about progress.
std::string summary(const std::string& status) {
  constexpr const char* kWanted[] = {
      "State:", "Threads:", "VmRSS:", "voluntary_ctxt_switches:", "Cpus_allowed_list:"};
  std::istringstream lines(status);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const bool is_wanted = std::any_of(std::begin(kWanted),
                                       std::end(kWanted),
                                       [&](const char* start) { return line.starts_with(start); });
    if (is_wanted) text += line + "\n";
  }
  return text;
}

// The real user in /proc/PID/status.
bool is_of(uid_t owner, const std::string& status) {
  return status.find("\nUid:\t" + std::to_string(owner) + "\t") != std::string::npos;
}

std::vector<std::string> threads_of(const std::string& folder) {
  std::vector<std::string> threads;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(folder + "/task", failure), end;
       !failure && entry != end;
       entry.increment(failure)) {
    if (threads.size() < kMostStacks) threads.push_back(entry->path().filename().string());
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::string describe_thread(const std::string& folder, const std::string& thread, System& system) {
  const std::string path = folder + "/task/" + thread;
  const auto name = system.read_once(path + "/comm");
  const auto waits = system.read_once(path + "/wchan");
  const auto stack = system.read_once(path + "/stack");
  std::string text = "thread " + thread;
  if (name) text += " " + name->substr(0, name->find('\n'));
  if (waits && !waits->empty() && *waits != "0") text += " waits in " + *waits;
  text += "\n";
  if (stack) text += *stack;
  return text;
}

}  // namespace

v1::DiagChunk diagnose(const v1::Worker& worker, uid_t owner, System& system) {
  v1::DiagChunk chunk;
  chunk.set_title("rank " + std::to_string(worker.rank()) + ", pid " +
                  std::to_string(worker.pid()));
  if (worker.pid() <= 0) {
    chunk.set_text("has ended\n");
    return chunk;
  }
  const std::string folder = "/proc/" + std::to_string(worker.pid());
  const auto status = system.read_once(folder + "/status");
  if (!status) {
    chunk.set_text("cannot be read: " + status.error().message() + "\n");
    return chunk;
  }
  constexpr const char* kForeign = "is no process of the job's user\n";
  if (!is_of(owner, *status)) {
    chunk.set_text(kForeign);
    return chunk;
  }
  std::string text = summary(*status);
  for (const std::string& thread : threads_of(folder))
    text += describe_thread(folder, thread, system);
  // Its number may be another process's by now.
  const auto again = system.read_once(folder + "/status");
  chunk.set_text(again && is_of(owner, *again) ? printable(text) : kForeign);
  return chunk;
}

Diagnosis::Diagnosis(FileReaders& files,
                     uid_t user,
                     std::vector<v1::Worker> workers,
                     Handlers handlers)
    : files_(files), user_(user), workers_(std::move(workers)), handlers_(std::move(handlers)) {}

void Diagnosis::next() {
  if (next_ == workers_.size()) return handlers_.on_end();
  const auto chunk = std::make_shared<v1::DiagChunk>();
  files_.add(
      user_,
      [chunk, worker = workers_[next_++], user = user_] {
        *chunk = diagnose(worker, user, real_system());
      },
      [self = shared_from_this(), chunk] { self->handlers_.on_chunk(std::move(*chunk)); });
}

}  // namespace accel::agent

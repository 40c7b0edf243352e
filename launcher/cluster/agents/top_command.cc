#include "launcher/cluster/agents/top_command.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "launcher/cluster/agents/answers.h"
#include "launcher/cluster/agents/top_feed.h"
#include "launcher/cluster/agents/top_terminal.h"
#include "launcher/text/terminal_text.h"
#include "launcher/top/top_model.h"
#include "launcher/top/top_screen.h"
#include "runtime/clock.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

using launcher::TopModel;
using launcher::TopOrder;
using launcher::TopWindow;
using std::chrono::milliseconds;
using std::chrono::seconds;

milliseconds interval_of(const launcher::AgentFlags& flags) {
  return milliseconds(static_cast<std::int64_t>(flags.interval * 1000));
}

void take_answer(TopModel& model, TopAnswer answer) {
  take_jobs(model, std::move(answer.jobs));
  model.node = std::move(answer.node);
  model.is_drained = answer.is_drained;
  model.notice = std::move(answer.notice);
  model.lost.clear();
  model.has_answer = true;
}

Error no_such_job(const std::string& named) {
  return Error(ErrorCode::kJobUnknown,
               "there is no job '" + printable(named) + "'",
               "see `accel status` for the jobs of this agent");
}

class TopSession {
 public:
  TopSession(const AgentClient& client,
             const launcher::AgentFlags& flags,
             bool is_local,
             TopTerminal& terminal)
      : flags_(flags), terminal_(terminal), feed_(client, is_local, interval_of(flags)) {}

  int run() {
    while (!is_over_ && !failure_) {
      const TopWindow size = window();
      if (model_.has_answer) terminal_.draw(top_lines(model_, size), size);
      wait();
    }
    terminal_.leave();
    unblock_top_signals();  // what the feed waits for may take seconds: Ctrl-C ends that
    return failure_ ? fail(*failure_) : 0;
  }

 private:
  [[nodiscard]] TopWindow window() const { return terminal_.window(); }

  // For what comes first: a signal, a key, news, the end of a key's sequence, a second.
  void wait() {
    pollfd fds[] = {
        {terminal_.signal_fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}, {feed_.fd(), POLLIN, 0}};
    if (!model_.has_answer) fds[1].fd = -1;  // the shell's, until the screen is entered
    constexpr int kEscapeMilliseconds = 50;  // a sequence of a key comes sooner
    constexpr int kTick = 1000;
    const int ready =
        ::poll(fds, std::size(fds), keys_.is_within_sequence() ? kEscapeMilliseconds : kTick);
    if (ready < 0) {
      is_over_ = errno != EINTR;
      return;
    }
    if (ready == 0) {
      if (const auto pressed = keys_.over()) take_key(*pressed);
    }
    if (fds[0].revents != 0) {
      terminal_.take_signals();
      heard_at_ = SteadyClock().now();  // nobody could be heard while it was stopped
    }
    if (fds[1].revents != 0) take_keys();
    if (fds[2].revents != 0) take_news();
    note_silence();
  }

  void note_silence() {
    constexpr seconds kPatience{3};
    const Duration late = SteadyClock().now() - heard_at_ - interval_of(flags_);
    model_.silent_for = std::chrono::duration_cast<seconds>(late);
    if (model_.silent_for < kPatience) model_.silent_for = seconds(0);
  }

  void take_keys() {
    char bytes[256];
    const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (size <= 0) {
      is_over_ = true;
      return;
    }
    const std::string_view text(bytes, static_cast<std::size_t>(size));
    for (const launcher::TopPress& pressed : keys_.take(text)) {
      if (!is_over_) take_key(pressed);
    }
  }

  void take_key(const launcher::TopPress& pressed) {
    const TopOrder order = press(model_, pressed, top_page_rows(window()));
    switch (order.kind) {
      case TopOrder::Kind::kNone:
        return;
      case TopOrder::Kind::kQuit:
        is_over_ = true;
        return;
      case TopOrder::Kind::kRedraw:
        return terminal_.forget();
      case TopOrder::Kind::kFollow:
        return follow(order.uuid);
      case TopOrder::Kind::kStop:
      case TopOrder::Kind::kKill:
        model_.message = "asking the agent";
        return feed_.give(order);
      case TopOrder::Kind::kRefresh:
        return feed_.give(order);
    }
  }

  // Without a first answer there is nothing to show: it is the error that the other commands have.
  void take_news() {
    for (TopNews& news : feed_.take()) {
      heard_at_ = SteadyClock().now();
      if (!news.message.empty()) model_.message = std::move(news.message);
      if (!news.not_stopped.empty()) take_failed_stop(model_, news.not_stopped);
      if (news.failure && !model_.has_answer) {
        failure_ = std::move(news.failure);
        return;
      }
      if (news.failure) model_.lost = news.failure->message();
      if (!news.answer) continue;
      const bool is_first = !model_.has_answer;
      take_answer(model_, *std::move(news.answer));
      if (is_first) open();
    }
  }

  void open() {
    if (!flags_.job.empty() && !open_job(model_, flags_.job)) {
      failure_ = no_such_job(flags_.job);
      return;
    }
    terminal_.enter();
  }

  void follow(const std::string& uuid) {
    std::vector<std::string> words = {"accel", "logs", "-f", uuid};
    if (!flags_.agent.empty()) words.insert(words.end(), {"--agent", flags_.agent});
    if (!flags_.tls_dir.empty()) words.insert(words.end(), {"--tls-dir", flags_.tls_dir});
    if (flags_.insecure) words.emplace_back("--insecure");
    const bool is_left = terminal_.run_beside(std::move(words));
    if (!is_left) wait_for_enter();
    terminal_.enter();
    heard_at_ = SteadyClock().now();
  }

  // The terminal hands out whole lines here.
  void wait_for_enter() {
    std::printf("-- the log is at its end: Enter goes back to accel top --\n");
    std::fflush(stdout);
    char line[256];
    pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {terminal_.signal_fd(), POLLIN, 0}};
    ::poll(fds, std::size(fds), -1);
    if (fds[0].revents != 0 && ::read(STDIN_FILENO, line, sizeof line) <= 0) is_over_ = true;
  }

  const launcher::AgentFlags& flags_;
  TopTerminal& terminal_;
  bool is_over_ = false;
  std::optional<Error> failure_;
  TimePoint heard_at_ = SteadyClock().now();
  TopModel model_;
  launcher::TopKeys keys_;
  TopFeed feed_;
};

// Of an agent, cores and rates are known after two looks, which lie half an interval apart; before the first one it knows no steps.
int print_once(const AgentClient& client, const launcher::AgentFlags& flags, bool is_local) {
  constexpr int kLooks = 3;
  TopProcesses processes;
  TopModel model;
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(interval_of(flags) / (kLooks - 1));
    auto answer = ask_for_jobs(client, is_local, processes);
    if (!answer) return fail(answer.error());
    take_answer(model, *std::move(answer));
  }
  if (!flags.job.empty() && !open_job(model, flags.job)) return fail(no_such_job(flags.job));
  constexpr std::size_t kPipeColumns = 120;
  const std::size_t columns = launcher::terminal_columns(STDOUT_FILENO);
  const TopWindow window = {.columns = columns > 0 ? columns : kPipeColumns, .rows = 0};
  for (const std::string& line : top_lines(model, window)) {
    const std::size_t end = line.find_last_not_of(' ');
    std::printf("%s\n", line.substr(0, end == std::string::npos ? 0 : end + 1).c_str());
  }
  return 0;
}

}  // namespace

int show_top(const AgentClient& client, const launcher::AgentFlags& flags) {
  const bool is_local =
      !parse_agent_address(flags.agent, flags.tls_dir, flags.insecure).socket_folder.empty();
  if (flags.once) return print_once(client, flags, is_local);
  TopTerminal terminal;
  if (const std::string objection = terminal.objection(); !objection.empty())
    return fail(Error(ErrorCode::kUsage, objection, "print one frame: accel top --once"));
  return TopSession(client, flags, is_local, terminal).run();
}

}  // namespace accel::cluster

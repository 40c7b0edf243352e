#include "agent/jobs/event_diary.h"

#include <cstdio>
#include <ctime>
#include <utility>

#include <nlohmann/json.hpp>

#include "agent/jobs/job_runner.h"
#include "agent/jobs/job_state.h"
#include "runtime/printable.h"
#include "runtime/supervisor/metrics/job_counters.h"

namespace accel::agent {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostText = 4096;  // bytes

// What others wrote: valid UTF-8, and not without end.
std::string bounded_text(const std::string& text) {
  return printable(std::string_view(text).substr(0, kMostText));
}

std::string time_text(std::chrono::system_clock::time_point wall) {
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(wall.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[48];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(
      text + length, sizeof text - length, ".%06dZ", static_cast<int>(micros % 1'000'000));
  return text;
}

std::string event_name(ReportKind kind) {
  switch (kind) {
    case ReportKind::kNodeSuspect:
      return "node_suspect";
    case ReportKind::kNodeLost:
      return "node_lost";
    case ReportKind::kNodeBack:
      return "node_back";
    case ReportKind::kNodeQuarantined:
      return "node_quarantined";
    case ReportKind::kNodesMissing:
      return "nodes_missing";
    case ReportKind::kJobPhase:
      return "job_phase";
    case ReportKind::kFirstFailure:
      return "first_failure";
    case ReportKind::kStraggler:
      return "straggler";
    case ReportKind::kClockOff:
      return "clock_off";
    case ReportKind::kJournalFull:
      return "journal_full";
    case ReportKind::kJournalBack:
      return "journal_back";
    case ReportKind::kDeclined:
      return "declined";
    case ReportKind::kOutdated:
      return "outdated";
  }
  return "report";
}

// What one event adds to the key.
struct Details {
  const EventSubject& subject;
  std::string event;  // empty: nothing is written
  Json json = Json::object();

  void of_rank(int global_rank, int local_rank) {
    json["rank"] = global_rank;
    json["local_rank"] = local_rank;
  }

  void operator()(const supervisor::GenerationStarted& started) {
    event = "workers_started";
    json["generation"] = started.generation;
    json["first_rank"] = subject.first_rank;
    json["pids"] = started.pids;
  }
  void operator()(const supervisor::WorkerExit& exit) {
    event = "worker_ended";
    json["generation"] = exit.generation;
    of_rank(exit.global_rank, exit.local_rank);
    json["pid"] = exit.pid;
    json["cause"] = label_of(exit.cause);
    json["exit_code"] = exit.exit_code;
    json["signal"] = exit.signal;
    if (exit.step >= 0) json["step"] = exit.step;
    json["seen_mono_ns"] = exit.seen_at.count();
  }
  void operator()(const supervisor::Restarting& restarting) {
    event = "restarting";
    json["next_generation"] = restarting.next_generation;
    json["delay_ms"] = restarting.delay.count();
    of_rank(restarting.because.global_rank, restarting.because.local_rank);
    json["cause"] = label_of(restarting.because.cause);
  }
  void operator()(const supervisor::Hung& hung) {
    event = "hung";
    json["generation"] = hung.generation;
    json["rank"] = hung.global_rank;
    json["step"] = hung.step;
    json["silent_ms"] = hung.silent_for.count();
    json["silent_ranks"] = hung.silent_ranks;
  }
  void operator()(const supervisor::Straggler& straggler) {
    event = "straggler";
    json["generation"] = straggler.generation;
    json["rank"] = straggler.global_rank;
    json["step_ms"] = straggler.step_time.count();
    json["median_ms"] = straggler.median.count();
  }
  void operator()(const supervisor::WorkerStopped& stopped) {
    event = stopped.is_stopped ? "worker_stopped" : "worker_continued";
    json["rank"] = stopped.global_rank;
    json["pid"] = stopped.pid;
  }
  void operator()(const supervisor::Notice& notice) {
    event = "notice";
    json["text"] = bounded_text(notice.text);
  }
  template <typename Other>
  void operator()(const Other&) {}
};

}  // namespace

EventMoment event_moment_now() {
  return {.wall = std::chrono::system_clock::now(),
          .mono = std::chrono::steady_clock::now().time_since_epoch()};
}

// The key first, in the same order in every line.
struct EventDiary::Line {
  Json json;

  Line(EventDiary& diary, const std::string& event) {
    const EventMoment now = diary.now_();
    json["seq"] = diary.next_seq_++;
    json["wall"] = time_text(now.wall);
    json["mono_ns"] = now.mono.count();
    json["node"] = diary.node_id_;
    json["event"] = event;
  }
  void about(const std::string& job_id, const std::string& job_uuid, std::uint64_t generation) {
    json["job"] = bounded_text(job_id);
    json["job_uuid"] = bounded_text(job_uuid);
    json["generation"] = generation;
  }
  [[nodiscard]] std::string text() const {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
};

EventDiary::EventDiary(std::string node_id,
                       std::function<void(std::string)> write,
                       std::function<EventMoment()> now)
    : node_id_(std::move(node_id)), write_(std::move(write)), now_(std::move(now)) {}

void EventDiary::job_changed(const v1::Job& job) {
  Json what;
  what["state"] = job_state_word(job.state());
  what["restarts"] = job.restarts();
  what["reason"] = bounded_text(job.reason());
  if (has_ended(job)) what["exit_code"] = job.exit_code();
  const std::string now = std::to_string(job.generation()) + what.dump();
  if (std::exchange(told_[job.job_uuid()], now) == now) return;
  if (has_ended(job)) told_.erase(job.job_uuid());
  Line line(*this, "job");
  line.about(job.job_id(), job.job_uuid(), job.generation());
  line.json["user"] = bounded_text(job.user());
  line.json.update(what);
  write_(line.text());
}

void EventDiary::heard(const EventSubject& subject, const supervisor::HostEvent& event) {
  Details details{.subject = subject, .event = {}};
  std::visit(details, event);
  if (details.event.empty()) return;
  Line line(*this, details.event);
  line.about(subject.job_id, subject.job_uuid, subject.generation);
  line.json.update(details.json);
  write_(line.text());
}

void EventDiary::reported(const Report& report,
                          const EventSubject& subject,
                          std::string_view state) {
  Line line(*this, event_name(report.kind));
  if (!subject.job_uuid.empty()) {
    line.about(subject.job_id, subject.job_uuid, subject.generation);
    line.json["state"] = state;
  }
  if (!report.node_id.empty()) line.json["about_node"] = bounded_text(report.node_id);
  line.json["text"] = bounded_text(report.text);
  write_(line.text());
}

}  // namespace accel::agent

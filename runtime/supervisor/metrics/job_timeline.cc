#include "runtime/supervisor/metrics/job_timeline.h"

#include <utility>
#include <variant>

#include "runtime/supervisor/spawn/exit_error.h"

namespace accel::supervisor {
namespace {

std::string in_words(const WorkerExit& exit, int num_workers) {
  return error_of(exit, rank_name(exit, num_workers)).message();
}

std::string milliseconds_text(std::chrono::milliseconds time) {
  return std::to_string(time.count()) + " ms";
}

}  // namespace

void JobTimeline::hear(const HostEvent& event, double wall_seconds, int num_workers) {
  const auto note = [&](std::string_view kind, int rank, std::string text) {
    add({.wall_seconds = wall_seconds,
         .kind = kind,
         .generation = generation_,
         .rank = rank,
         .text = std::move(text)});
  };
  if (const auto* started = std::get_if<GenerationStarted>(&event)) {
    generation_ = started->generation;
    note("started", -1, std::to_string(started->pids.size()) + " workers run");
  } else if (const auto* exit = std::get_if<WorkerExit>(&event)) {
    // Those that end well are the job's end, or follow from another one.
    if (exit->is_failure()) note("failed", exit->global_rank, in_words(*exit, num_workers));
  } else if (const auto* restarting = std::get_if<Restarting>(&event)) {
    note("restarting",
         restarting->because.global_rank,
         "generation " + std::to_string(restarting->next_generation) + " in " +
             milliseconds_text(restarting->delay));
  } else if (const auto* hung = std::get_if<Hung>(&event)) {
    note("hung",
         hung->global_rank,
         "no progress for " + milliseconds_text(hung->silent_for) + " since step " +
             std::to_string(hung->step));
  } else if (const auto* straggler = std::get_if<Straggler>(&event)) {
    note("straggler",
         straggler->global_rank,
         "steps of " + milliseconds_text(straggler->step_time) + ", those of the others " +
             milliseconds_text(straggler->median));
  } else if (const auto* stopped = std::get_if<WorkerStopped>(&event)) {
    note(stopped->is_stopped ? "stopped" : "continued",
         stopped->global_rank,
         stopped->is_traced ? "by a debugger" : "");
  } else if (const auto* outcome = std::get_if<JobOutcome>(&event)) {
    note("over", -1, outcome->reason);
  } else if (const auto* ended = std::get_if<GenerationEnded>(&event)) {
    note("ended", -1, ended->outcome.reason);
  }
}

void JobTimeline::add(Event event) {
  if (event.text.size() > kMostText) event.text.resize(kMostText);
  events_.push_back(std::move(event));
  if (events_.size() > kMostEvents) events_.pop_front();
}

}  // namespace accel::supervisor

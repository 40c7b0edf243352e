#include "agent/main/dashboard_actions.h"

#include <memory>
#include <string>
#include <utility>

#include "agent/jobs/diagnosis.h"
#include "agent/jobs/job_state.h"
#include "agent/main/timed_answer.h"

namespace accel::agent {
namespace {

using supervisor::DashboardAction;
using supervisor::DashboardDeed;
using supervisor::DashboardOutcome;

constexpr std::size_t kMostStackText = 512 * 1024;  // bytes

Caller operator_at(const std::string& from) {
  return {.role = Role::kOperator, .name = "an operator of the dashboard at " + from};
}

DashboardOutcome failed(const Error& error) {
  std::string text = error.message();
  if (!error.remedy().empty()) text += "; " + error.remedy();
  return {.is_done = false, .text = std::move(text)};
}

void stop(const DashboardAction& action,
          ControlService& control,
          boost::asio::io_context& loop,
          TellOutcome done) {
  v1::StopReq request;
  request.set_job(action.job);
  request.set_kill(action.kill);
  const auto job = std::make_shared<v1::Job>();
  const auto answer = TimedAnswer<DashboardOutcome>::begin(
      loop,
      kActionPatience,
      [] {
        return DashboardOutcome{
            .is_done = false,
            .text = "nobody answered: it is not known whether the job was asked to stop"};
      },
      std::move(done));
  control.stop_once(
      operator_at(action.from), request, job.get(), [job, answer](const Result<void>& stopped) {
        if (!stopped) return answer->give(failed(stopped.error()));
        answer->give({.text = "job " + job->job_id() + " is " + job_state_word(job->state())});
      });
}

DashboardOutcome drain(const DashboardAction& action, ControlService& control) {
  const auto drained = control.drain_node(operator_at(action.from), {});
  if (!drained) return failed(drained.error());
  return {.text = "the node starts no more jobs; `accel undrain` lets it"};
}

// What was told of the rank, and of nodes that told nothing of theirs.
struct RankStacks {
  int rank = 0;
  std::string text;
  std::weak_ptr<Diagnosis> here;  // has the next worker of this node; its handlers keep us

  void take(const v1::DiagChunk& chunk) {
    const bool is_of_a_rank = chunk.title().find("rank ") != std::string::npos;
    const bool is_wanted = !is_of_a_rank || is_about_rank(chunk.title(), rank);
    if (is_wanted && text.size() + chunk.text().size() <= kMostStackText)
      text += "== " + chunk.title() + "\n" + chunk.text();
  }
};

DashboardOutcome outcome_of(const RankStacks& stacks, const std::string& otherwise) {
  if (stacks.text.empty()) return {.is_done = false, .text = otherwise};
  return {.text = stacks.text};
}

}  // namespace

bool is_about_rank(std::string_view title, int rank) {
  const std::size_t at = title.rfind("rank ");
  return at != std::string_view::npos &&
         title.substr(at).starts_with("rank " + std::to_string(rank) + ", ");
}

ControlService::DiagnosisTaker taker_of_stacks(int rank,
                                               boost::asio::io_context& loop,
                                               std::chrono::milliseconds patience,
                                               TellOutcome done) {
  const auto stacks = std::make_shared<RankStacks>(RankStacks{.rank = rank});
  const std::string late =
      "the stacks did not come within " + std::to_string(patience.count()) +
      " ms: a file system of the job's user does not answer, or the agent of another node";
  const auto answer = TimedAnswer<DashboardOutcome>::begin(
      loop, patience, [stacks, late] { return outcome_of(*stacks, late); }, std::move(done));
  return {.take =
              [stacks, answer](const v1::DiagChunk& chunk) {
                if (answer->is_over()) return;  // nobody wants the rest
                stacks->take(chunk);
                if (const auto here = stacks->here.lock()) here->next();
              },
          .begin =
              [stacks](const std::shared_ptr<Diagnosis>& here) {
                stacks->here = here;
                here->next();
              },
          .finish =
              [stacks, answer](const Result<void>& told) {
                if (!told) return answer->give(failed(told.error()));
                answer->give(
                    outcome_of(*stacks, "rank " + std::to_string(stacks->rank) + " does not run"));
              }};
}

void carry_out(const DashboardAction& action,
               ControlService& control,
               boost::asio::io_context& loop,
               TellOutcome done) {
  switch (action.deed) {
    case DashboardDeed::kStop:
      return stop(action, control, loop, std::move(done));
    case DashboardDeed::kDrain:
      return done(drain(action, control));
    case DashboardDeed::kStacks:
      return control.diagnose_job(
          operator_at(action.from),
          action.job,
          taker_of_stacks(action.rank, loop, kActionPatience, std::move(done)));
  }
}

}  // namespace accel::agent

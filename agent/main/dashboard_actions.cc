#include "agent/main/dashboard_actions.h"

#include <memory>
#include <string>
#include <utility>

#include "agent/jobs/diagnosis.h"
#include "agent/jobs/job_state.h"

namespace accel::agent {
namespace {

using supervisor::DashboardAction;
using supervisor::DashboardDeed;
using supervisor::DashboardOutcome;
using TellOutcome = std::function<void(DashboardOutcome)>;

constexpr std::size_t kMostStackText = 512 * 1024;  // bytes

Caller operator_at(const std::string& from) {
  return {.role = Role::kOperator, .name = "an operator of the dashboard at " + from};
}

DashboardOutcome failed(const Error& error) {
  std::string text = error.message();
  if (!error.remedy().empty()) text += "; " + error.remedy();
  return {.is_done = false, .text = std::move(text)};
}

void stop(const DashboardAction& action, ControlService& control, const TellOutcome& done) {
  v1::StopReq request;
  request.set_job(action.job);
  const auto job = std::make_shared<v1::Job>();
  control.stop_job(
      operator_at(action.from), request, job.get(), [job, done](const Result<void>& stopped) {
        if (!stopped) return done(failed(stopped.error()));
        done({.text = "job " + job->job_id() + " is " + job_state_word(job->state())});
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
  std::shared_ptr<Diagnosis> here;  // has the next worker of this node

  void take(const v1::DiagChunk& chunk) {
    const bool is_of_a_rank = chunk.title().find("rank ") != std::string::npos;
    const bool is_wanted = !is_of_a_rank || is_about_rank(chunk.title(), rank);
    if (is_wanted && text.size() + chunk.text().size() <= kMostStackText)
      text += "== " + chunk.title() + "\n" + chunk.text();
  }
};

void take_stacks(const DashboardAction& action, ControlService& control, const TellOutcome& done) {
  const auto stacks = std::make_shared<RankStacks>(RankStacks{.rank = action.rank});
  control.diagnose_job(
      operator_at(action.from),
      action.job,
      {.take =
           [stacks](const v1::DiagChunk& chunk) {
             stacks->take(chunk);
             if (stacks->here) stacks->here->next();
           },
       .begin =
           [stacks](const std::shared_ptr<Diagnosis>& here) {
             stacks->here = here;
             here->next();  // may be the last
           },
       .finish =
           [stacks, done](const Result<void>& told) {
             const auto last = std::exchange(stacks->here, nullptr);  // it kept `stacks`
             if (!told) return done(failed(told.error()));
             if (stacks->text.empty())
               return done({.is_done = false,
                            .text = "rank " + std::to_string(stacks->rank) + " does not run"});
             done({.text = stacks->text});
           }});
}

}  // namespace

bool is_about_rank(std::string_view title, int rank) {
  const std::size_t at = title.rfind("rank ");
  return at != std::string_view::npos &&
         title.substr(at).starts_with("rank " + std::to_string(rank) + ", ");
}

void carry_out(const DashboardAction& action, ControlService& control, TellOutcome done) {
  switch (action.deed) {
    case DashboardDeed::kStop:
      return stop(action, control, done);
    case DashboardDeed::kDrain:
      return done(drain(action, control));
    case DashboardDeed::kStacks:
      return take_stacks(action, control, done);
  }
}

}  // namespace accel::agent

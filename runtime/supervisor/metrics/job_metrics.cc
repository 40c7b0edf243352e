#include "runtime/supervisor/metrics/job_metrics.h"

#include "runtime/supervisor/watch/step_report.h"

namespace accel::supervisor {
void add_ledger(MetricPage& page, const std::string& job, const LedgerState& ledger) {
  Duration age{};
  for (const Account phase : kAccountsOfTime) {
    age += ledger.of(phase);
    page.add(Metric::kJobTime, {job, name_of(phase)}, seconds_of(ledger.of(phase)));
  }
  if (age > Duration::zero()) {
    page.add(Metric::kJobEffectiveRatio,
             {job},
             seconds_of(ledger.of(Account::kProductive)) / seconds_of(age));
  }
}

void add_restarts(MetricPage& page, const std::string& job, const JobCounters::ByCause& restarts) {
  for (const auto& [cause, count] : restarts)
    page.add(Metric::kJobRestarts, {job, label_of(cause)}, static_cast<double>(count));
}

void add_workers(MetricPage& page,
                 const std::string& job,
                 const std::string& node,
                 int num_running,
                 int num_all) {
  page.add(Metric::kWorkerState, {job, node, "running"}, num_running);
  page.add(Metric::kWorkerState, {job, node, "ended"}, num_all - num_running);
}

void add_counters(MetricPage& page,
                  const std::string& job,
                  const std::string& node,
                  const JobCounters& counters,
                  TimePoint now) {
  page.add(Metric::kWorkerStarts, {job, node}, static_cast<double>(counters.starts()));
  for (const auto& [cause, count] : counters.exits())
    page.add(Metric::kWorkerExits, {job, node, label_of(cause)}, static_cast<double>(count));
  for (const JobCounters::Sight& sight : counters.sights()) {
    const std::string rank = std::to_string(sight.local_rank);
    page.add(Metric::kWorkerHeartbeatAge, {job, node, rank}, seconds_of(now - sight.beat_at));
    page.add(Metric::kWorkerStep, {job, node, rank}, static_cast<double>(sight.step));
    if (sight.seconds_per_step > 0)
      page.add(Metric::kWorkerStepSeconds, {job, node, rank}, sight.seconds_per_step);
    if (sight.times.steps == 0) continue;
    page.add(Metric::kWorkerTimedSteps, {job, node, rank}, static_cast<double>(sight.times.steps));
    for (const StepPartTime& part : parts_of(sight.times))
      page.add(Metric::kWorkerStepTime, {job, node, rank, part.label}, part.nanoseconds / 1e9);
  }
}

void add_durations(MetricPage& page, const DurationTotals& durations) {
  page.add(Metric::kWorkerStartDuration, {}, durations.start);
  page.add(Metric::kStopDuration, {}, durations.stop);
  page.add(Metric::kRestartDuration, {}, durations.restart);
  page.add(Metric::kFailureDetection, {"hang"}, durations.hang_detection);
}

}  // namespace accel::supervisor

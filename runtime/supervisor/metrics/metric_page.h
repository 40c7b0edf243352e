// MetricPage: what the agent measures, in the text format of Prometheus.
//
// Every family is in one table, with its type and the names of its labels: a sample names a row of it and gives the labels'
// values in their order. So a family has one HELP and one TYPE line, and no label that the table does not have.
//
// Threads:  plain values.
// Cost:     O(log n) for each sample; the same labels again replace the value.
// Source:   prometheus.io, "Exposition formats" (text, 0.0.4); docs/reference/metrics.md is compared with the table by a test.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"

namespace accel::supervisor {

enum class Metric {
  kBuildInfo,
  kAgentDraining,
  kAgentJobs,
  kAgentSlots,
  kAgentSlotsTaken,
  kAgentConnected,
  kEventLoopLag,
  kAuditRefusals,
  kConnectionsRefused,
  kCertificateEnd,
  kWorkerState,
  kWorkerStarts,
  kWorkerExits,
  kWorkerHeartbeatAge,
  kWorkerStep,
  kWorkerTimedSteps,
  kWorkerStepTime,
  kWorkerStepSeconds,
  kWorkerStartDuration,
  kStopDuration,
  kRestartDuration,
  kFailureDetection,
  kJobRestarts,
  kJobTime,
  kJobEffectiveRatio,
  kGeneration,
  kCoordinatorLeads,
  kLeaderEpoch,
  kSessions,
  kNodes,
  kCoordinatorJobs,
  kStaleMessages,
  kClockOffset,
  kDashboardRefusals,
  kProcessCpu,
  kProcessMemory,
  kProcessOpenFds,
  kProcessMaxFds,
  kProcessStart,
  kCount,
};

enum class MetricType { kGauge, kCounter, kHistogram };

struct MetricInfo {
  Metric metric;
  std::string_view name;
  MetricType type;
  std::string_view
      labels;  // "job node", in the order in which samples give their values; empty: none
  std::string_view help;
};
[[nodiscard]] std::span<const MetricInfo> metric_table();
[[nodiscard]] std::string_view name_of(MetricType type);

// How often something took how long.
class DurationHistogram {
 public:
  // Upper bounds in seconds; longer ones are in the last bucket, +Inf.
  static constexpr std::array kBounds = {
      0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0};

  void observe(Duration took);  // below zero counts as zero
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] double sum() const { return sum_; }  // seconds
  // Observations up to kBounds[i].
  [[nodiscard]] std::uint64_t at_most(std::size_t i) const;

 private:
  std::array<std::uint64_t, kBounds.size()> buckets_{};
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

[[nodiscard]] double seconds_of(Duration duration);

class MetricPage {
 public:
  // Requires: as many values as the metric has labels.
  void add(Metric metric, std::initializer_list<std::string_view> labels, double value);
  // A histogram that nothing was observed in is left out.
  void add(Metric metric,
           std::initializer_list<std::string_view> labels,
           const DurationHistogram& histogram);

  // By the table's order; families without samples are left out.
  [[nodiscard]] std::string text() const;

 private:
  // By their labels: what a family says about them.
  std::array<std::map<std::string, std::string>, static_cast<std::size_t>(Metric::kCount)>
      families_;
};

}  // namespace accel::supervisor

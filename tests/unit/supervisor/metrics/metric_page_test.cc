#include "runtime/supervisor/metrics/metric_page.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/metrics/job_metrics.h"

namespace accel::supervisor::metric_page_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(MetricTable, NamesFollowTheConventionsOfPrometheus) {
  std::set<std::string_view> names;
  for (const MetricInfo& info : metric_table()) {
    const std::string name(info.name);
    EXPECT_THAT(name, MatchesRegex("(accel|process)_[a-z_]+"));
    EXPECT_EQ(name.ends_with("_total"), info.type == MetricType::kCounter) << name;
    EXPECT_EQ(info.type == MetricType::kHistogram && !name.ends_with("_seconds"), false) << name;
    EXPECT_FALSE(info.help.empty()) << name;
    EXPECT_EQ(info.help.find_first_of("\\\n"), std::string_view::npos) << name;
    EXPECT_TRUE(names.insert(info.name).second) << name << " is there twice";
  }
}

// Labels whose values strangers or time could make many are not among them: no pid, uuid, step or text.
TEST(MetricTable, HasLabelsThatAreBoundedAlone) {
  const std::set<std::string> allowed = {"version",
                                         "state",
                                         "file",
                                         "job",
                                         "node",
                                         "local_rank",
                                         "cause",
                                         "phase",
                                         "part",
                                         "kind",
                                         "type"};
  for (const MetricInfo& info : metric_table()) {
    std::istringstream labels{std::string(info.labels)};
    for (std::string label; labels >> label;) EXPECT_TRUE(allowed.contains(label)) << label;
  }
}

TEST(MetricTable, IsThatOfTheDocument) {
  const char* root = std::getenv("ACCEL_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) + "/docs/reference/metrics.md");
  std::set<std::string> documented;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `accel_") || line.starts_with("| `process_")) documented.insert(line);
  }

  std::set<std::string> expected;
  for (const MetricInfo& info : metric_table()) {
    std::string labels(info.labels);
    for (std::size_t at = 0; (at = labels.find(' ', at)) != std::string::npos; at += 2)
      labels.replace(at, 1, ", ");
    expected.insert("| `" + std::string(info.name) + "` | " + std::string(name_of(info.type)) +
                    " | " + labels + " | " + std::string(info.help) + " |");
  }
  EXPECT_EQ(documented, expected);
}

TEST(MetricPage, SaysHelpAndTypeOnceForEachFamily) {
  MetricPage page;
  page.add(Metric::kWorkerStarts, {"b", "n1"}, 2);
  page.add(Metric::kJobRestarts, {"a", "oom"}, 1);
  page.add(Metric::kWorkerStarts, {"a", "n1"}, 0);

  EXPECT_EQ(page.text(),
            "# HELP accel_worker_starts_total workers that were started\n"
            "# TYPE accel_worker_starts_total counter\n"
            "accel_worker_starts_total{job=\"a\",node=\"n1\"} 0\n"
            "accel_worker_starts_total{job=\"b\",node=\"n1\"} 2\n"
            "# HELP accel_job_restarts_total restarts, by what ended the worker that failed first\n"
            "# TYPE accel_job_restarts_total counter\n"
            "accel_job_restarts_total{job=\"a\",cause=\"oom\"} 1\n");
}

TEST(MetricPage, EscapesTheValuesOfLabels) {
  MetricPage page;
  page.add(Metric::kGeneration, {"a\\b\"c\nd"}, 1);

  EXPECT_THAT(page.text(), HasSubstr("{job=\"a\\\\b\\\"c\\nd\"} 1\n"));
}

// Prometheus refuses a page that says the same thing twice.
TEST(MetricPage, KeepsTheLastOfTwoValuesWithTheSameLabels) {
  MetricPage page;
  page.add(Metric::kGeneration, {"a"}, 1);
  page.add(Metric::kGeneration, {"a"}, 7);

  EXPECT_THAT(page.text(), HasSubstr("{job=\"a\"} 7\n"));
  EXPECT_THAT(page.text(), Not(HasSubstr("{job=\"a\"} 1\n")));
}

TEST(MetricPage, WritesLargeAndSmallNumbersExactly) {
  MetricPage page;
  page.add(Metric::kWorkerStep, {"a", "n", "0"}, 9007199254740991.0);
  page.add(Metric::kWorkerStep, {"a", "n", "1"}, 0.1);

  EXPECT_THAT(page.text(), HasSubstr("local_rank=\"0\"} 9007199254740991\n"));
  EXPECT_THAT(page.text(), HasSubstr("local_rank=\"1\"} 0.1\n"));
}

TEST(MetricPage, AddsUpTheBucketsOfAHistogram) {
  DurationHistogram histogram;
  histogram.observe(1ms);
  histogram.observe(30ms);
  histogram.observe(1h);
  histogram.observe(-5s);
  MetricPage page;
  page.add(Metric::kFailureDetection, {"hang"}, histogram);

  const std::string text = page.text();
  EXPECT_THAT(text, HasSubstr("_bucket{kind=\"hang\",le=\"0.001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{kind=\"hang\",le=\"0.05\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{kind=\"hang\",le=\"600\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{kind=\"hang\",le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("_sum{kind=\"hang\"} 3600.031\n"));
  EXPECT_THAT(text, HasSubstr("_count{kind=\"hang\"} 4\n"));
}

TEST(MetricPage, LeavesOutWhatHasNoSamples) {
  MetricPage page;
  page.add(Metric::kStopDuration, {}, DurationHistogram());

  EXPECT_THAT(page.text(), IsEmpty());
}

TEST(WorkerMetrics, TellWhereTheTimeOfStepsWentOfWorkersThatMeasureIt) {
  Snapshot snapshot;
  snapshot.workers = {{.local_rank = 0, .is_alive = true, .beats = 1, .step = 7},
                      {.local_rank = 1,
                       .is_alive = true,
                       .beats = 1,
                       .step = 7,
                       .times = {.steps = 6, .total_ns = 4'000'000'000, .input_ns = 500'000'000}}};
  JobCounters counters;
  DurationTotals totals;
  counters.hear(HostEvent(snapshot), TimePoint{}, totals);
  MetricPage page;
  add_counters(page, "a", "n", counters, TimePoint{});

  const std::string text = page.text();
  const std::string rank = R"({job="a",node="n",local_rank="1")";
  const std::string time = "accel_worker_step_time_seconds_total" + rank;
  EXPECT_THAT(text, HasSubstr("accel_worker_timed_steps_total" + rank + "} 6\n"));
  EXPECT_THAT(text, HasSubstr(time + R"(,part="compute"} 3.5)"));
  EXPECT_THAT(text, HasSubstr(time + R"(,part="input"} 0.5)"));
  EXPECT_THAT(text, HasSubstr(time + R"(,part="io"} 0)"));
  EXPECT_THAT(text, Not(HasSubstr(R"(timed_steps_total{job="a",node="n",local_rank="0")")));
}

}  // namespace
}  // namespace accel::supervisor::metric_page_test

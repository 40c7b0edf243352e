#include "launcher/curves/panels.h"

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/plot/plot_scale.h"

namespace accel::launcher::panels_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

RunLog run_of(std::map<std::string, std::vector<RunPoint>> metrics) {
  RunLog run;
  run.metrics = std::move(metrics);
  return run;
}

std::vector<std::pair<double, double>> pairs_of(const std::vector<CurvePoint>& points) {
  std::vector<std::pair<double, double>> pairs;
  for (const CurvePoint& point : points) pairs.emplace_back(point.x, point.y);
  return pairs;
}

std::vector<std::string> names_of(const Result<Panels>& panels) {
  std::vector<std::string> names;
  if (!panels) return {panels.error().message()};
  for (const Panel& panel : panels->panels) names.push_back(panel.metric);
  return names;
}

TEST(Panels, ARunThatWentBackHasTheLaterValuesOfTheStepsThatItDidAgain) {
  const RunLog run = run_of({{"loss", {{1, 0, 5}, {2, 1, 6}, {3, 2, 7}, {2, 9, 8}, {3, 10, 9}}}});

  const auto panels = panels_of({run}, {});

  ASSERT_TRUE(panels);
  EXPECT_THAT(pairs_of(panels->panels[0].curves[0].points),
              ElementsAre(std::pair(1.0, 5.0), std::pair(2.0, 8.0), std::pair(3.0, 9.0)));
}

TEST(Panels, AStepThatWasLoggedTwiceHasItsLastValueOverStepsAndBothOverTime) {
  const RunLog run = run_of({{"loss", {{1, 0, 5}, {2, 1, 6}, {2, 1.5, 7}}}});

  const auto steps = panels_of({run}, {});
  const auto times = panels_of({run}, {.axis = CurveAxis::kTime});

  ASSERT_TRUE(steps && times);
  EXPECT_THAT(pairs_of(steps->panels[0].curves[0].points),
              ElementsAre(std::pair(1.0, 5.0), std::pair(2.0, 7.0)));
  EXPECT_THAT(pairs_of(times->panels[0].curves[0].points),
              ElementsAre(std::pair(0.0, 5.0), std::pair(1.0, 6.0), std::pair(1.5, 7.0)));
}

TEST(Panels, TimeCountsFromEachRunsFirstEntryInTheUnitOfTheLongest) {
  const RunLog first = run_of({{"loss", {{1, 1000, 5}, {2, 1000 + 7200, 6}}}});
  const RunLog second = run_of({{"acc", {{1, 40, 1}}}, {"loss", {{1, 100, 7}}}});

  const auto panels = panels_of({first, second}, {.axis = CurveAxis::kTime});

  ASSERT_TRUE(panels);
  EXPECT_EQ(panels->x_label, "time (h)");
  ASSERT_THAT(names_of(panels), ElementsAre("acc", "loss"));
  const Panel& loss = panels->panels[1];
  EXPECT_THAT(pairs_of(loss.curves[0].points),
              ElementsAre(std::pair(0.0, 5.0), std::pair(2.0, 6.0)));
  EXPECT_THAT(pairs_of(loss.curves[1].points), ElementsAre(std::pair(60.0 / 3600, 7.0)));
  EXPECT_EQ(loss.curves[1].run, 1U);
}

TEST(Panels, MetricsAreChosenByNameAndPattern) {
  const RunLog run =
      run_of({{"acc", {{1, 0, 1}}}, {"loss/a", {{1, 0, 1}}}, {"loss/b", {{1, 0, 1}}}});
  const auto chosen = [&](std::vector<std::string> metrics) {
    return names_of(panels_of({run}, {.metrics = std::move(metrics)}));
  };

  EXPECT_THAT(chosen({"loss*"}), ElementsAre("loss/a", "loss/b"));
  EXPECT_THAT(chosen({"loss/b", "acc"}), ElementsAre("acc", "loss/b"));
  EXPECT_THAT(chosen({"acc", "acc"}), ElementsAre("acc"));
  EXPECT_THAT(chosen({"acx"}),
              ElementsAre("no run has a metric 'acx', there are: acc, loss/a, loss/b"));
}

TEST(Panels, RunsWithoutNumbersOrTimesAreRefused) {
  EXPECT_THAT(names_of(panels_of({RunLog()}, {})), ElementsAre("these runs have no numbers yet"));
  EXPECT_THAT(names_of(panels_of({run_of({{"loss", {{1, 0, kGap}}}})}, {})),
              ElementsAre("these runs have no numbers yet"));
  EXPECT_THAT(names_of(panels_of({run_of({{"loss", {{1, kGap, 1}}}})}, {.axis = CurveAxis::kTime})),
              ElementsAre("these runs have no numbers with a time"));
}

// 1: 0.5 * 0 + 0.5 * 4 = 2, by 1 - 0.5 is 4. 2: 0.5 * 2 + 0.5 * 8 = 5, by 1 - 0.25 is 20/3. All exact but the last division.
TEST(Panels, SmoothingIsAnAverageCorrectedForItsBeginningAndLeavesGapsOut) {
  const auto points = smoothed({{1, 4}, {2, kGap}, {3, 8}}, 0.5);

  EXPECT_EQ(points[0].y, 4);
  EXPECT_TRUE(std::isnan(points[1].y));
  EXPECT_EQ(points[2].y, 5 / 0.75);
}

std::vector<std::string> labels_of(double low, double high, int most) {
  std::vector<std::string> labels;
  for (const PlotTick& tick : ticks_of({low, high}, most)) labels.push_back(tick.label);
  return labels;
}

TEST(PlotScale, TicksAreRoundNumbersWithinTheRange) {
  EXPECT_THAT(labels_of(0, 1000, 5), ElementsAre("0", "200", "400", "600", "800", "1000"));
  EXPECT_THAT(labels_of(-0.25, 0.3, 5), ElementsAre("-0.2", "0", "0.2"));
  EXPECT_THAT(labels_of(1'000'000, 1'000'010, 5),
              ElementsAre("1000000", "1000002", "1000004", "1000006", "1000008", "1000010"));
  EXPECT_THAT(labels_of(2.3e-7, 3.1e-7, 4), ElementsAre("2.4e-07", "2.6e-07", "2.8e-07", "3e-07"));
}

TEST(PlotScale, ARangeOfNothingAndTheLargestNumbersCanBeDrawn) {
  const auto scales_of_values = [](double a, double b) {
    return scales_of(
        {.metric = "", .curves = {{.run = 0, .points = {{1, a}, {2, b}}, .smooth = {}}}});
  };
  for (const auto& [a, b] : {std::pair(3.0, 3.0),
                             std::pair(0.0, 0.0),
                             std::pair(0.0, 5e-324),
                             std::pair(-1e300, 1e300),
                             std::pair(1e16, 1e16 + 2)}) {
    const PlotScale scale = scales_of_values(a, b).y;
    EXPECT_LT(scale.low, scale.high) << a;
    EXPECT_GE(scale.place(a), 0) << a;
    EXPECT_LE(scale.place(b), 1) << b;
    const auto ticks = ticks_of(scale, 5);
    EXPECT_GE(ticks.size(), 2U) << a;
    EXPECT_LE(ticks.size(), 7U) << a;
  }
}

TEST(Panels, NamesAtMostTwentyMetricsOfManyInItsError) {
  std::map<std::string, std::vector<RunPoint>> metrics;
  for (int i = 0; i < 30; ++i) metrics["m" + std::to_string(i)] = {{1, 0, 1}};

  const auto panels = panels_of({run_of(std::move(metrics))}, {.metrics = {"zzz"}});

  ASSERT_FALSE(panels);
  EXPECT_THAT(panels.error().message(), HasSubstr(", ..."));
}

TEST(WithoutUnseen, KeepsOfEachColumnItsEndsAndItsExtremesAndAllGaps) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 100; ++i)
    points.push_back({static_cast<double>(i), i == 7 ? 50.0 : i == 3 ? -50.0 : i == 55 ? NAN : 0});

  std::vector<double> kept;
  for (const CurvePoint& point : without_unseen(points, 10)) {
    if (point.x < 10 || (point.x >= 50 && point.x < 60)) kept.push_back(point.x);
  }
  EXPECT_THAT(kept, ::testing::ElementsAre(0, 3, 7, 9, 50, 54, 55, 56, 59));
  EXPECT_EQ(without_unseen(points, 1).size(), points.size());
}

}  // namespace
}  // namespace accel::launcher::panels_test

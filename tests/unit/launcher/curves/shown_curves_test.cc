#include "launcher/curves/shown_curves.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>

#include "tests/support/scratch_folder.h"

namespace accel::launcher::shown_curves_test {
namespace {

using supervisor::DashboardCurves;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string line_of(int step, double loss) {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(loss) + "}\n";
}

TEST(ShownCurves, HaveAPanelForEachMetricAndACurveForEachRun) {
  const test::ScratchFolder folder;
  folder.write("log.jsonl", line_of(1, 0.5) + line_of(2, 0.25));
  const DashboardCurves curves = curves_at(folder.file(""));
  ASSERT_THAT(curves.panels, SizeIs(1));
  EXPECT_EQ(curves.x_label, "step");
  EXPECT_EQ(curves.panels[0].metric, "loss");
  ASSERT_THAT(curves.panels[0].curves, SizeIs(1));
  ASSERT_THAT(curves.panels[0].curves[0].points, SizeIs(2));
  EXPECT_EQ(curves.panels[0].curves[0].points[1].x, 2);
  EXPECT_EQ(curves.panels[0].curves[0].points[1].y, 0.25);
}

// A long run: what is sent stays small, and its peaks are seen.
TEST(ShownCurves, AreThinnedToWhatAPictureShows) {
  const test::ScratchFolder folder;
  std::string text;
  constexpr int kSteps = 50'000;
  for (int step = 0; step < kSteps; ++step) text += line_of(step, step == 31'337 ? 99 : 1);
  folder.write("log.jsonl", text);

  const DashboardCurves curves = curves_at(folder.file(""));
  const auto& points = curves.panels.at(0).curves.at(0).points;
  EXPECT_LE(points.size(), 4u * (kShownColumns + 1));
  EXPECT_TRUE(std::ranges::any_of(points, [](const auto& point) { return point.y == 99; }));
  EXPECT_EQ(points.back().x, kSteps - 1);
}

TEST(ShownCurves, HaveTheGoodRunBesideOneThatIsTooLarge) {
  const test::ScratchFolder folder;
  folder.write("a/log.jsonl", line_of(1, 0.5) + line_of(2, 0.5));
  folder.write("b/log.jsonl", line_of(1, 0.5));

  const DashboardCurves curves =
      curves_at(folder.file(""), {.runs = {.file_bytes = line_of(1, 0.5).size()}});

  ASSERT_THAT(curves.panels, SizeIs(1));
  ASSERT_THAT(curves.panels[0].curves, SizeIs(1));
  EXPECT_THAT(curves.panels[0].curves[0].run, HasSubstr("/b"));
  EXPECT_THAT(curves.notice, HasSubstr("a/log.jsonl has more than"));
}

TEST(ShownCurves, HaveNoMorePointsThanALookMayHave) {
  const test::ScratchFolder folder;
  folder.write("log.csv", "step,a,b,c\n1,1,1,1\n2,2,2,2\n");

  const DashboardCurves curves = curves_at(folder.file(""), {.points = 5});

  EXPECT_THAT(curves.panels, SizeIs(2));
  EXPECT_THAT(curves.notice, HasSubstr("only 2 of 3 metrics are shown, for their curves"));
  EXPECT_THAT(curves_at(folder.file(""), {.panels = 1}).notice,
              HasSubstr("only 1 of 3 metrics are shown"));
}

TEST(ShownCurves, SayWhatIsNotThere) {
  EXPECT_THAT(curves_at("/nowhere/at/all").notice, HasSubstr("there is no run /nowhere/at/all"));
}

}  // namespace
}  // namespace accel::launcher::shown_curves_test

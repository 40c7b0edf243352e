#include "launcher/watch/watch_settings.h"

#include <gmock/gmock.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::watch_settings_test {
namespace {

using supervisor::to_text;
using ::testing::HasSubstr;

class WatchSettingsTest : public test::LaunchPlanFixture {};

TEST_F(WatchSettingsTest, NobodyWatchesUnlessItWasSaid) {
  EXPECT_FALSE(plan({"--num_processes", "2"}).watch.is_any());
}

TEST_F(WatchSettingsTest, IsOnLoopbackUnlessItWasSaid) {
  const WatchSettings watch = plan({"--metrics_port", "9100", "--dashboard"}).watch;

  ASSERT_TRUE(watch.metrics && watch.dashboard);
  EXPECT_EQ(to_text(*watch.metrics), "127.0.0.1:9100");
  EXPECT_EQ(to_text(*watch.dashboard), "127.0.0.1:0");
}

TEST_F(WatchSettingsTest, APortOfTheDashboardAsksForIt) {
  EXPECT_EQ(
      to_text(*plan({"--dashboard_port", "9101", "--watch_address", "[::1]"}).watch.dashboard),
      "[::1]:9101");
}

TEST_F(WatchSettingsTest, AnAddressBeyondLoopbackMustBeAllowed) {
  const Words open = {"--metrics_port", "9100", "--watch_address", "0.0.0.0"};
  EXPECT_THAT(refused(open).message(),
              HasSubstr("--watch_address is 0.0.0.0, which is not a loopback address"));

  Words allowed = open;
  allowed.emplace_back("--watch_beyond_loopback");
  EXPECT_EQ(to_text(*plan(allowed).watch.metrics), "0.0.0.0:9100");
}

TEST_F(WatchSettingsTest, RefusesWhatIsNoPortAndNoAddress) {
  EXPECT_THAT(refused({"--metrics_port", "65536"}).message(), HasSubstr("--metrics_port"));
  EXPECT_THAT(refused({"--dashboard_port", "-1"}).message(), HasSubstr("--dashboard_port"));
  EXPECT_THAT(refused({"--dashboard", "--watch_address", "gpu-01"}).message(),
              HasSubstr("--watch_address is 'gpu-01', expected a numeric address"));
  EXPECT_THAT(refused({"--watch_address", "127.0.0.1"}).message(), HasSubstr("nothing is to be"));
}

TEST_F(WatchSettingsTest, CurvesAreForTheDashboard) {
  EXPECT_EQ(plan({"--dashboard", "--tracking_dir", "runs"}).watch.tracking_dir, "runs");
  EXPECT_THAT(refused({"--metrics_port", "0", "--tracking_dir", "runs"}).message(),
              HasSubstr("--tracking_dir says whose curves the dashboard draws"));
}

TEST_F(WatchSettingsTest, IsForWorkersThatTheLauncherStartsItself) {
  const Words nodes = {
      "--dashboard", "--num_machines", "2", "--num_processes", "2", "--machine_rank", "0"};
  Words machines = nodes;
  machines.insert(machines.end(),
                  {"--main_process_ip", "10.0.0.1", "--main_process_port", "29500"});
  EXPECT_TRUE(plan(machines).watch.dashboard);

  EXPECT_THAT(refused({"--dashboard", "--agent", "--num_processes", "2"}).message(),
              HasSubstr("--dashboard is for workers that this launcher starts itself"));
}

}  // namespace
}  // namespace accel::launcher::watch_settings_test

#include "launcher/top/top_screen.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/joined.h"
#include "runtime/text/text_columns.h"

namespace accel::launcher::top_screen_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TopModel with_jobs(int count) {
  TopModel model;
  model.has_answer = true;
  model.node = "gpu-01";
  for (int i = 0; i < count; ++i) {
    TopJob job;
    job.id = "job-" + std::to_string(1000 + i);
    job.uuid = job.id;
    job.state = "running";
    job.user = "ann";
    job.num_workers = 2;
    job.restarts = 3;
    job.elapsed = std::chrono::seconds(3723);
    job.ranks = {{.rank = 0,
                  .pid = 7,
                  .memory_bytes = 1.5 * (1 << 30),
                  .cpu = 0.5,
                  .step = 120,
                  .step_seconds = 0.4},
                 {.rank = 1, .pid = 0, .ending = "SIGKILL"}};
    model.jobs.push_back(job);
  }
  return model;
}

std::string text_of(const TopModel& model, const TopWindow& window) {
  return joined(top_lines(model, window), "\n");
}

TEST(TopScreen, FillsItsWindowAndNeverPassesIt) {
  for (const int jobs : {0, 1, 200}) {
    for (const std::size_t columns : {1U, 20U, 80U, 200U}) {
      for (const std::size_t rows : {1U, 3U, 5U, 24U}) {
        const auto lines = top_lines(with_jobs(jobs), {.columns = columns, .rows = rows});

        EXPECT_THAT(lines, SizeIs(rows)) << jobs;
        for (const std::string& line : lines) EXPECT_LE(text_columns(line), columns) << line;
      }
    }
  }
}

TEST(TopScreen, ShowsWhatIsKnownOfAJob) {
  const auto lines = top_lines(with_jobs(1), {.columns = 110, .rows = 10});

  EXPECT_THAT(lines[0], HasSubstr("node gpu-01   1 job, 1 running   sorted by state"));
  EXPECT_THAT(lines[3], StartsWith("> job-1000"));
  EXPECT_THAT(lines[3], HasSubstr("running    ann"));
  EXPECT_THAT(lines[3], HasSubstr("     1       2      120   2.50/s  1.5 GiB        3  1:02:03"));
  EXPECT_THAT(lines[9], HasSubstr("q quit"));
}

TEST(TopScreen, RatesBelowOneInTenSecondsAreByMinuteOrHour) {
  TopModel model = with_jobs(1);
  const TopWindow window = {.columns = 110, .rows = 10};

  model.jobs[0].ranks[0].step_seconds = 12.5;
  EXPECT_THAT(top_lines(model, window)[3], HasSubstr(" 4.80/min "));
  model.jobs[0].ranks[0].step_seconds = 1200;
  EXPECT_THAT(top_lines(model, window)[3], HasSubstr(" 3.00/h "));
  model.jobs[0].ranks[0].step_seconds = 0.0025;
  EXPECT_THAT(top_lines(model, window)[3], HasSubstr(" 400/s "));
}

TEST(TopScreen, ANarrowWindowKeepsTheColumnsThatMatterAndTheKeysOfAnAnswer) {
  TopModel model = with_jobs(1);
  const TopWindow narrow = {.columns = 40, .rows = 12};

  const auto lines = top_lines(model, narrow);
  EXPECT_EQ(lines[2], "  JOB                STATE       ELAPSED");
  EXPECT_EQ(lines[3], "> job-1000           running     1:02:03");
  EXPECT_EQ(lines.back(), "q quit   ? keys   Enter ranks   k stop");
  model.asked = "job-1000";
  model.jobs[0].id = "a-name-that-is-much-longer-than-the-window-is-wide";
  EXPECT_EQ(top_lines(model, narrow).back(), "stop a-name-th~? y: yes K: SIGKILL n: no");
  EXPECT_EQ(top_lines(model, {.columns = 20, .rows = 12}).back(), "stop a-name-~? y/K/n");

  const auto wide = top_lines(model, {.columns = 80, .rows = 12});
  for (const char* const title : {"STATE", "STEP", "RATE", "MEMORY", "RESTARTS", "ELAPSED", "EXIT"})
    EXPECT_THAT(wide[2], HasSubstr(title));
}

TEST(TopScreen, TheKeysAreNamedOnAPageOfTheirOwn) {
  TopModel model = with_jobs(1);
  model.shows_keys = true;

  const std::string text = text_of(model, {.columns = 40, .rows = 24});

  for (const char* const key : {"Enter", "Esc", "/ ", "s, S", "r ", "l ", "k ", "Space", "q "})
    EXPECT_THAT(text, HasSubstr("\n  " + std::string(key)));
  EXPECT_THAT(text.substr(text.find('\n')), Not(HasSubstr("~")));  // all lines but the first
  EXPECT_THAT(text, HasSubstr("any key goes back"));
}

TEST(TopScreen, StylesComeOnlyWhereTheyAreWanted) {
  const TopModel model = with_jobs(1);

  EXPECT_THAT(top_lines(model, {.columns = 80, .rows = 12}), Each(Not(HasSubstr("\x1b"))));
  EXPECT_THAT(top_lines(model, {.columns = 80, .rows = 12, .has_styles = true})[3],
              StartsWith("\x1b[7m> job-1000"));
}

TEST(TopScreen, TwoHundredJobsScrollWithTheSelection) {
  TopModel model = with_jobs(200);
  model.selected = "job-1150";

  const std::string text = text_of(model, {.columns = 100, .rows = 24});

  EXPECT_THAT(text, HasSubstr("> job-1150"));
  EXPECT_THAT(text, Not(HasSubstr("job-1000")));
  model.selected = "job-1199";
  EXPECT_THAT(text_of(model, {.columns = 100, .rows = 24}), HasSubstr("> job-1199"));
}

TEST(TopScreen, RanksSayHowTheyEnded) {
  TopModel model = with_jobs(1);
  model.page = TopPage::kRanks;
  model.selected = "job-1000";

  const std::string text = text_of(model, {.columns = 80, .rows = 12});

  EXPECT_THAT(text, HasSubstr("     0         7      120   2.50/s   1.5 GiB    0.50  running"));
  EXPECT_THAT(text, HasSubstr("     1         -        -        -         -       -  SIGKILL"));
  model.jobs.clear();
  EXPECT_THAT(text_of(model, {.columns = 80, .rows = 12}), HasSubstr("that job is gone"));
}

TEST(TopScreen, AnAgentThatDoesNotAnswerIsSaidOverTheOldList) {
  TopModel model = with_jobs(1);
  model.lost = "cannot connect";
  EXPECT_THAT(text_of(model, {.columns = 80, .rows = 12}),
              HasSubstr("! the agent does not answer, this is old: cannot connect"));

  model.lost.clear();
  model.silent_for = std::chrono::seconds(12);
  EXPECT_THAT(text_of(model, {.columns = 80, .rows = 12}),
              HasSubstr("! no answer of the agent for 12 seconds"));

  const TopModel never;
  EXPECT_THAT(text_of(never, {.columns = 80, .rows = 12}), HasSubstr("waiting for the agent"));
}

TEST(TopScreen, AsksBeforeAStop) {
  TopModel model = with_jobs(1);
  model.asked = "job-1000";

  EXPECT_THAT(top_lines(model, {.columns = 100, .rows = 12}).back(),
              StartsWith("stop job-1000?  y: yes"));
  model.asks_for_kill = true;
  EXPECT_THAT(top_lines(model, {.columns = 100, .rows = 12}).back(),
              StartsWith("kill job-1000, which stops already?  y: SIGKILL now"));
}

TEST(TopScreen, NamesCannotSpeakToTheTerminal) {
  TopModel model = with_jobs(1);
  model.jobs[0].id = "a\x1b[2J\nb";
  model.jobs[0].user = "\x1b]0;x\x07";
  model.notice =
      "\x9b"
      "31m";
  model.asked = model.jobs[0].uuid;
  for (const TopPage page : {TopPage::kJobs, TopPage::kRanks}) {
    model.page = page;
    model.selected = model.jobs[0].uuid;
    const auto lines = top_lines(model, {.columns = 100, .rows = 12});
    EXPECT_THAT(lines, Each(Not(HasSubstr("\x1b"))));
    EXPECT_THAT(lines, Each(Not(HasSubstr("\n"))));
    EXPECT_THAT(joined(lines, "\n"), HasSubstr("a?[2J b"));
  }
}

TEST(TopScreen, OneFrameAsTextHasAllJobsAndNoKeys) {
  const auto lines = top_lines(with_jobs(200), {.columns = 100, .rows = 0});

  EXPECT_THAT(lines, SizeIs(203));
  EXPECT_THAT(lines, Each(Not(HasSubstr("quit"))));
  EXPECT_THAT(lines, Each(Not(StartsWith(">"))));
}

}  // namespace
}  // namespace accel::launcher::top_screen_test

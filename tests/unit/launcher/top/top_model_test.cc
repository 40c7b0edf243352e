#include "launcher/top/top_model.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::top_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TopJob job_named(const std::string& id,
                 const std::string& state = "running",
                 unsigned workers = 1) {
  TopJob job;
  job.id = id;
  job.uuid = "uuid-" + id;
  job.state = state;
  job.user = "ann";
  job.num_workers = workers;
  if (state == "succeeded" || state == "failed") job.exit_code = 0;
  return job;
}

TopModel model_of(std::vector<TopJob> jobs) {
  TopModel model;
  model.jobs = std::move(jobs);
  model.has_answer = true;
  return model;
}

std::vector<std::string> ids_of(const TopModel& model) {
  std::vector<std::string> ids;
  for (const TopJob* job : shown_jobs(model)) ids.push_back(job->id);
  return ids;
}

TopOrder type(TopModel& model, const std::string& text) {
  TopOrder order;
  for (const char letter : text) order = press(model, {TopKey::kLetter, letter}, 10);
  return order;
}

TopOrder type(TopModel& model, TopKey key) {
  return press(model, {key, 0}, 10);
}

TEST(TopModel, JobsThatRunComeFirstAndSortAndReverseChangeThat) {
  TopModel model = model_of(
      {job_named("a", "succeeded"), job_named("b", "running", 2), job_named("c", "failed", 9)});
  EXPECT_THAT(ids_of(model), ElementsAre("b", "c", "a"));

  type(model, "s");
  EXPECT_THAT(ids_of(model), ElementsAre("a", "b", "c"));  // by name
  type(model, "r");
  EXPECT_THAT(ids_of(model), ElementsAre("c", "b", "a"));
  type(model, "rss");
  EXPECT_EQ(model.sort, TopSort::kWorkers);
  EXPECT_THAT(ids_of(model), ElementsAre("c", "b", "a"));
}

TEST(TopModel, AFilterIsTypedAndFitsNameUserAndStateInAnyCase) {
  TopModel model = model_of({job_named("Train"), job_named("eval", "failed"), job_named("other")});

  type(model, "/TRAIM");
  type(model, TopKey::kErase);
  EXPECT_THAT(ids_of(model), ElementsAre("Train"));
  EXPECT_TRUE(model.is_typing);
  type(model, TopKey::kEnter);
  EXPECT_FALSE(model.is_typing);

  type(model, TopKey::kEscape);
  type(model, "/q");  // a letter of the filter, not the end
  EXPECT_THAT(ids_of(model), IsEmpty());
  EXPECT_EQ(selected_job(model), nullptr);
  type(model, TopKey::kEscape);
  EXPECT_EQ(ids_of(model).size(), 3U);
}

TEST(TopModel, TheSelectionStaysWithItsJobWhenTheListChanges) {
  TopModel model = model_of({job_named("a"), job_named("b"), job_named("c")});
  type(model, TopKey::kDown);
  EXPECT_EQ(selected_job(model)->id, "b");

  model.jobs.insert(model.jobs.begin(), job_named("0"));
  EXPECT_EQ(selected_job(model)->id, "b");
  model.jobs = {job_named("x"), job_named("y")};
  EXPECT_EQ(selected_job(model)->id, "x");

  type(model, TopKey::kEnd);
  type(model, TopKey::kDown);
  EXPECT_EQ(selected_job(model)->id, "y");
  type(model, TopKey::kPageUp);
  EXPECT_EQ(selected_job(model)->id, "x");
}

TEST(TopModel, WhatIsNotKnownComesBehindWhateverNumbers) {
  TopModel model = model_of({job_named("a"), job_named("b"), job_named("c")});
  model.jobs[1].ranks = {{.rank = 0, .memory_bytes = 5.0, .step = 7, .step_seconds = 2.0},
                         {.rank = 1, .memory_bytes = 6.0, .step = 9, .step_seconds = 1.0}};
  model.jobs[2].ranks = {{.rank = 0, .memory_bytes = 12.0, .step = 1, .step_seconds = 4.0}};

  EXPECT_EQ(top_step(model.jobs[1]), 7U);  // of the rank farthest behind
  EXPECT_EQ(top_step_rate(model.jobs[1]), 0.5);
  EXPECT_EQ(top_memory_bytes(model.jobs[1]), 11.0);
  EXPECT_EQ(top_step_rate(model.jobs[0]), std::nullopt);
  type(model, "ssss");
  EXPECT_EQ(model.sort, TopSort::kRate);
  EXPECT_THAT(ids_of(model), ElementsAre("b", "c", "a"));
  type(model, "s");
  EXPECT_EQ(model.sort, TopSort::kMemory);
  EXPECT_THAT(ids_of(model), ElementsAre("c", "b", "a"));
  type(model, "SS");
  EXPECT_EQ(model.sort, TopSort::kWorkers);
}

TEST(TopModel, ASelectionThatIsNoLongerShownGoesToTheJobInItsRow) {
  TopModel model = model_of({job_named("a"), job_named("b"), job_named("c")});
  type(model, TopKey::kDown);

  take_jobs(model, {job_named("a"), job_named("c")});
  EXPECT_EQ(selected_job(model)->id, "c");
  take_jobs(model, {job_named("a")});
  EXPECT_EQ(selected_job(model)->id, "a");
  take_jobs(model, {});
  EXPECT_EQ(selected_job(model), nullptr);
}

TEST(TopModel, TheKeysOfARankPageAreAboutItsJobAlone) {
  TopModel model = model_of({job_named("a"), job_named("b")});
  ASSERT_TRUE(open_job(model, "b"));
  model.filter = "a";  // b is not in the list that is shown

  EXPECT_EQ(type(model, "l").uuid, "uuid-b");
  type(model, "k");
  EXPECT_EQ(model.asked, "uuid-b");
  type(model, "n");
  take_jobs(model, {job_named("a")});
  type(model, "k");
  EXPECT_EQ(model.asked, "");  // never another one's
  EXPECT_EQ(type(model, "l").kind, TopOrder::Kind::kNone);
}

TEST(TopModel, AJobIsOpenedByItsIdOrItsUuid) {
  TopModel model = model_of({job_named("a")});

  EXPECT_FALSE(open_job(model, "b"));
  EXPECT_EQ(model.page, TopPage::kJobs);
  EXPECT_TRUE(open_job(model, "uuid-a"));
  EXPECT_EQ(model.page, TopPage::kRanks);
}

TEST(TopModel, TheKeysAreShownUntilAnyKeyWhichThenDoesNothingElse) {
  TopModel model = model_of({job_named("a")});

  type(model, "?");
  EXPECT_TRUE(model.shows_keys);
  EXPECT_EQ(type(model, "q").kind, TopOrder::Kind::kNone);
  EXPECT_FALSE(model.shows_keys);
}

TEST(TopModel, AJobIsStoppedOnlyByAYes) {
  TopModel model = model_of({job_named("a"), job_named("b")});
  type(model, TopKey::kDown);

  EXPECT_EQ(type(model, "k").kind, TopOrder::Kind::kNone);
  EXPECT_EQ(type(model, "n").kind, TopOrder::Kind::kNone);
  EXPECT_EQ(model.message, "not stopped");
  type(model, "k");
  EXPECT_EQ(type(model, TopKey::kEnter).kind, TopOrder::Kind::kNone);

  type(model, "k");
  model.jobs.insert(model.jobs.begin(), job_named("0"));  // an answer comes before the yes
  const TopOrder stop = type(model, "y");
  EXPECT_EQ(stop.kind, TopOrder::Kind::kStop);
  EXPECT_EQ(stop.uuid, "uuid-b");
  type(model, "k");
  EXPECT_EQ(type(model, "K").kind, TopOrder::Kind::kKill);
}

TEST(TopModel, AYesForAJobThatStopsAlreadyIsAKillAndSaysSo) {
  TopModel model = model_of({job_named("a", "stopping"), job_named("b")});
  type(model, TopKey::kEnd);

  type(model, "k");
  EXPECT_TRUE(model.asks_for_kill);
  EXPECT_EQ(type(model, "y").kind, TopOrder::Kind::kKill);
  type(model, TopKey::kHome);
  type(model, "k");
  EXPECT_FALSE(model.asks_for_kill);
  EXPECT_EQ(type(model, "y").kind, TopOrder::Kind::kStop);
}

// Whether it was stopped may not be known: the list may be old.
TEST(TopModel, AJobThatWasAskedToStopIsKilledAfterAnotherQuestionAlone) {
  TopModel model = model_of({job_named("a")});
  type(model, "k");
  EXPECT_EQ(type(model, "y").kind, TopOrder::Kind::kStop);

  type(model, "k");
  EXPECT_TRUE(model.asks_for_kill);
  EXPECT_EQ(type(model, "n").kind, TopOrder::Kind::kNone);

  take_failed_stop(model, "uuid-a");
  type(model, "k");
  EXPECT_FALSE(model.asks_for_kill);
  EXPECT_EQ(type(model, "y").kind, TopOrder::Kind::kStop);
}

TEST(TopModel, AJobThatHasEndedIsNotAskedFor) {
  TopModel model = model_of({job_named("a", "failed")});

  type(model, "k");

  EXPECT_EQ(model.asked, "");
  EXPECT_EQ(model.message, "that job has ended");
}

TEST(TopModel, RanksScrollAsFarAsTheirEnd) {
  TopModel model = model_of({job_named("a")});
  for (unsigned rank = 0; rank < 64; ++rank) model.jobs[0].ranks.push_back({.rank = rank});
  type(model, TopKey::kEnter);
  EXPECT_EQ(model.page, TopPage::kRanks);

  type(model, TopKey::kEnd);
  EXPECT_EQ(model.first_row, 55U);  // 64 and the names of the columns, in 10 rows
  type(model, TopKey::kPageUp);
  EXPECT_EQ(model.first_row, 45U);
  type(model, TopKey::kHome);
  EXPECT_EQ(model.first_row, 0U);
  type(model, TopKey::kEscape);
  EXPECT_EQ(model.page, TopPage::kJobs);
}

TEST(TopModel, LettersGiveTheirOrders) {
  TopModel model = model_of({job_named("a")});
  TopModel empty = model_of({});

  EXPECT_EQ(type(model, "l").uuid, "uuid-a");
  EXPECT_EQ(type(model, "q").kind, TopOrder::Kind::kQuit);
  for (const char* const letter : {"l", "k", "s", "x"})
    EXPECT_EQ(type(empty, letter).kind, TopOrder::Kind::kNone) << letter;
  EXPECT_EQ(type(empty, TopKey::kEnter).kind, TopOrder::Kind::kNone);
  EXPECT_EQ(empty.page, TopPage::kJobs);
}

std::vector<TopKey> keys_of(const std::string& bytes) {
  std::vector<TopKey> keys;
  TopKeys decoder;
  for (const char byte : bytes) {
    for (const TopPress& pressed : decoder.take(std::string_view(&byte, 1)))
      keys.push_back(pressed.key);
  }
  return keys;
}

TEST(TopKeys, SequencesOfATerminalAreKeysHoweverTheyAreCut) {
  EXPECT_THAT(keys_of("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\r\x7F"),
              ElementsAre(TopKey::kUp,
                          TopKey::kDown,
                          TopKey::kPageUp,
                          TopKey::kPageDown,
                          TopKey::kHome,
                          TopKey::kEnd,
                          TopKey::kEnter,
                          TopKey::kErase));
  EXPECT_THAT(keys_of("\x1b[1;5C\x1b[200~q\x01\xC3"), ElementsAre(TopKey::kLetter));
}

TEST(TopKeys, ALoneEscapeIsAKeyOnceNothingFollows) {
  TopKeys keys;

  EXPECT_THAT(keys.take("\x1b"), IsEmpty());
  const auto escape = keys.over();

  ASSERT_TRUE(escape);
  EXPECT_EQ(escape->key, TopKey::kEscape);
  EXPECT_FALSE(keys.over());
  EXPECT_THAT(keys_of("\x1b\x1b[A\f"), ElementsAre(TopKey::kEscape, TopKey::kUp, TopKey::kRedraw));
}

}  // namespace
}  // namespace accel::launcher::top_model_test

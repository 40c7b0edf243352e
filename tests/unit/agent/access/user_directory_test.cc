#include "agent/access/user_directory.h"

#include <atomic>
#include <future>
#include <mutex>

#include <gmock/gmock.h>

namespace accel::agent::user_directory_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kForever = 600'000ms;

Result<UserAccount> account(uid_t uid, const std::string& name) {
  UserAccount made{.name = name, .home = "/home/" + name, .shell = "/bin/sh", .credentials = {}};
  made.credentials.uid = uid;
  return made;
}

// A database that answers each question as it was told, and the questions that it was asked.
class Database {
 public:
  Result<UserAccount> operator()(const UserKey& user) {
    const std::lock_guard lock(mutex_);
    const auto* name = std::get_if<std::string>(&user);
    questions_.push_back(name != nullptr ? *name : std::to_string(std::get<uid_t>(user)));
    if (name != nullptr && *name != "ann") return Error(ErrorCode::kAgentRefused, "no " + *name);
    return account(1000, "ann");
  }
  std::vector<std::string> questions() {
    const std::lock_guard lock(mutex_);
    return questions_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> questions_;
};

class UserDirectoryTest : public testing::Test {
 protected:
  UserDirectory make(std::chrono::milliseconds patience = kForever, std::size_t most_asked = 32) {
    return UserDirectory(loop_,
                         {.ask = [this](const UserKey& user) { return database_(user); },
                          .patience = patience,
                          .most_asked = most_asked});
  }
  boost::asio::io_context loop_;
  Database database_;
};

TEST_F(UserDirectoryTest, WhoWasFoundIsKnownByUidAndByName) {
  UserDirectory users = make();
  bool is_done = false;
  users.look_up({uid_t{1000}}, [&] { is_done = true; });
  EXPECT_FALSE(is_done) << "it is asked beside the loop";
  EXPECT_FALSE(users.has_answer(uid_t{1000}));
  EXPECT_THAT(users.find(uid_t{1000}).error().message(), HasSubstr("no answer yet for uid 1000"));

  loop_.run();

  EXPECT_TRUE(is_done);
  EXPECT_EQ(users.find("ann")->home, "/home/ann");
  EXPECT_EQ(users.find(uid_t{1000})->name, "ann");
}

TEST_F(UserDirectoryTest, AFreshAnswerIsGivenAtOnceAndAnOldOneIsAskedForAgain) {
  UserDirectory users = make();
  users.look_up({"ann"}, [] {});
  loop_.run();

  int num_done = 0;
  users.look_up({"ann", uid_t{1000}}, [&] { ++num_done; });
  EXPECT_EQ(num_done, 1);
  EXPECT_THAT(database_.questions(), ElementsAre("ann"));

  users.look_up(
      {"ann"}, [&] { ++num_done; }, 0ms);
  EXPECT_EQ(num_done, 1);
  loop_.restart();
  loop_.run();
  EXPECT_EQ(num_done, 2);
  EXPECT_THAT(database_.questions(), ElementsAre("ann", "ann"));
}

TEST_F(UserDirectoryTest, WhoIsNotThereIsAskedForEachTimeAndIsAnError) {
  UserDirectory users = make();
  int num_done = 0;
  for (int i = 0; i < 2; ++i) {
    users.look_up({"bob"}, [&] { ++num_done; });
    loop_.restart();
    loop_.run();
  }
  EXPECT_EQ(num_done, 2);
  EXPECT_TRUE(users.has_answer("bob"));
  EXPECT_EQ(users.find("bob").error().message(), "no bob");
  EXPECT_THAT(database_.questions(), ElementsAre("bob", "bob"));
}

TEST_F(UserDirectoryTest, SeveralAreWaitedForTogetherAndEachIsAskedOnce) {
  UserDirectory users = make();
  int num_done = 0;
  users.look_up({"ann", "bob", "ann"}, [&] { ++num_done; });
  users.look_up({"ann"}, [&] { ++num_done; });
  loop_.run();
  EXPECT_EQ(num_done, 2);
  EXPECT_THAT(database_.questions(), testing::UnorderedElementsAre("ann", "bob"));
}

TEST_F(UserDirectoryTest, AnAnswerThatDoesNotComeHoldsUpNobodyElseAndItsOwnOnlyForAWhile) {
  std::promise<void> never;
  const auto waits = never.get_future().share();
  UserDirectory users(loop_,
                      {.ask = [waits](const UserKey& user) -> Result<UserAccount> {
                         if (user == UserKey("ann")) return account(1000, "ann");
                         waits.wait();
                         return account(7, "lost");
                       },
                       .patience = 1ms,
                       .most_asked = 2});
  std::vector<std::string> done;
  users.look_up({"lost"}, [&] { done.push_back("lost"); });
  users.look_up({"ann"}, [&] { done.push_back("ann"); });
  while (done.size() < 2) loop_.run_one();
  EXPECT_THAT(users.find("lost").error().message(), HasSubstr("no answer yet for user 'lost'"));
  while (!users.find("ann")) loop_.run_one();

  // Whoever asks for it now does not wait, and no second thread does.
  users.look_up({"lost"}, [&] { done.push_back("again"); });
  while (done.size() < 3) loop_.run_one();

  never.set_value();
  while (!users.find("lost")) loop_.run_one();
  EXPECT_EQ(users.find("lost")->credentials.uid, 7U);
}

TEST_F(UserDirectoryTest, MoreQuestionsThanMayBeOpenWaitForTheirTurn) {
  std::promise<void> first;
  const auto waits = first.get_future().share();
  UserDirectory users(loop_,
                      {.ask = [waits](const UserKey&) -> Result<UserAccount> {
                         waits.wait();
                         return Error(ErrorCode::kAgentRefused, "no such user");
                       },
                       .patience = kForever,
                       .most_asked = 1});
  int num_done = 0;
  users.look_up({"lost", "ann", "bob"}, [&] { ++num_done; });
  users.look_up({"bob"}, [&] { ++num_done; });
  loop_.poll();
  EXPECT_EQ(num_done, 0);
  first.set_value();
  loop_.run();
  EXPECT_EQ(num_done, 2);
  EXPECT_EQ(users.find("bob").error().message(), "no such user");
}

TEST_F(UserDirectoryTest, WhoseTurnDoesNotComeInTimeGoesOnToo) {
  std::promise<void> never;
  const auto waits = never.get_future().share();
  UserDirectory users(loop_,
                      {.ask = [waits](const UserKey&) -> Result<UserAccount> {
                         waits.wait();
                         return account(7, "lost");
                       },
                       .patience = 1ms,
                       .most_asked = 1});
  bool is_done = false;
  users.look_up({"lost"}, [] {});
  users.look_up({"ann"}, [&] { is_done = true; });
  while (!is_done) loop_.run_one();
  EXPECT_THAT(users.find("ann").error().message(), HasSubstr("no answer yet"));
  never.set_value();
  loop_.run();
}

TEST_F(UserDirectoryTest, TheOldestAnswerMakesRoom) {
  UserDirectory users(loop_,
                      {.ask = [](const UserKey& user) -> Result<UserAccount> {
                         return Error(ErrorCode::kAgentRefused,
                                      "no " + std::get<std::string>(user));
                       },
                       .patience = kForever,
                       .most_kept = 2});
  for (const std::string name : {"a", "b", "c"}) {
    users.look_up({name}, [] {});
    loop_.restart();
    loop_.run();
  }
  EXPECT_THAT(users.find("a").error().message(), HasSubstr("no answer yet"));
  EXPECT_EQ(users.find("b").error().message(), "no b");
  EXPECT_EQ(users.find("c").error().message(), "no c");
}

}  // namespace
}  // namespace accel::agent::user_directory_test

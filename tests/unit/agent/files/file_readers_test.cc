// Reads that hang, and whose turn it is. What a file system does that does not answer, a future does here.

#include "agent/files/file_readers.h"

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>

namespace accel::agent::file_readers_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uid_t kAnn = 7001;
constexpr uid_t kBob = 7002;
constexpr uid_t kCid = 7003;

// What has been read, by threads that nobody waits for.
class Said {
 public:
  void add(const std::string& word) {
    const std::scoped_lock lock(mutex_);
    words_.push_back(word);
  }
  [[nodiscard]] std::vector<std::string> words() const {
    const std::scoped_lock lock(mutex_);
    return words_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> words_;
};

class FileReadersTest : public testing::Test {
 protected:
  // A read that ends when `end` does.
  void hang(FileReaders& readers, uid_t user, const std::shared_future<void>& end) {
    readers.add(
        user, [end] { end.wait(); }, [this] { ++num_done_; });
  }
  void read(FileReaders& readers, uid_t user, const std::string& word) {
    readers.add(
        user, [said = said_, word] { said->add(word); }, [this] { ++num_done_; });
  }
  void run_until_done(int count) {
    while (num_done_ < count) loop_.run_one();
  }

  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays_{
      loop_.get_executor()};
  std::shared_ptr<Said> said_ = std::make_shared<Said>();
  int num_done_ = 0;
};

TEST_F(FileReadersTest, Fault64AUserWhoseReadHangsHoldsUpItselfAlone) {
  std::promise<void> end;
  FileReaders readers(loop_);
  hang(readers, kAnn, end.get_future().share());
  read(readers, kAnn, "ann");

  for (int i = 0; i < 3; ++i) {
    read(readers, kBob, "bob");
    read(readers, kCid, "cid");
    run_until_done(2 * (i + 1));
  }
  EXPECT_THAT(said_->words(), testing::Not(testing::Contains("ann")));

  end.set_value();
  run_until_done(8);
  EXPECT_EQ(said_->words().size(), 7U);
}

TEST_F(FileReadersTest, Fault64AUserTakesOneThreadAndAllTogetherNoMoreThanThereAre) {
  std::promise<void> anns;
  std::promise<void> bobs;
  FileReaders readers(loop_, 2);
  const auto until = anns.get_future().share();
  for (int i = 0; i < 9; ++i) hang(readers, kAnn, until);
  read(readers, kCid, "one");
  run_until_done(1);
  hang(readers, kBob, bobs.get_future().share());
  read(readers, kCid, "two");

  bobs.set_value();
  run_until_done(3);

  EXPECT_THAT(said_->words(), ElementsAre("one", "two"));
  anns.set_value();
  run_until_done(12);
}

TEST_F(FileReadersTest, UsersTakeTurns) {
  std::promise<void> end;
  FileReaders readers(loop_, 1);
  hang(readers, kCid, end.get_future().share());
  for (const char* word : {"ann 1", "ann 2", "ann 3"}) read(readers, kAnn, word);
  for (const char* word : {"bob 1", "bob 2"}) read(readers, kBob, word);

  end.set_value();
  run_until_done(6);

  EXPECT_THAT(said_->words(), ElementsAre("ann 1", "bob 1", "ann 2", "bob 2", "ann 3"));
}

TEST_F(FileReadersTest, TheEndWaitsForNoReadThatHangs) {
  std::promise<void> end;
  const auto has_begun = std::make_shared<std::promise<void>>();
  const auto is_over = std::make_shared<std::promise<void>>();
  auto readers = std::make_unique<FileReaders>(loop_);
  readers->add(
      kAnn,
      [wait = end.get_future().share(), has_begun, is_over] {
        has_begun->set_value();
        wait.wait();
        is_over->set_value();
      },
      [this] { ++num_done_; });
  read(*readers, kAnn, "ann");
  has_begun->get_future().wait();

  readers.reset();

  end.set_value();
  is_over->get_future().wait();
  loop_.poll();
  EXPECT_EQ(num_done_, 0);
  EXPECT_THAT(said_->words(), IsEmpty());
}

}  // namespace
}  // namespace accel::agent::file_readers_test

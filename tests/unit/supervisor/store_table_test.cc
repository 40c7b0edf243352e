#include "runtime/supervisor/store/store_table.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/store_client.h"

namespace accel::supervisor::store_table_test {
namespace {

using test::store_add;
using test::store_hello;
using test::store_keys_request;
using test::store_request;

class RecordingOutbox : public StoreOutbox {
 public:
  void send(StoreClientId client, std::string_view bytes) override { sent_[client].append(bytes); }
  std::string take(StoreClientId client) { return std::exchange(sent_[client], {}); }

 private:
  std::map<StoreClientId, std::string> sent_;
};

std::string blob(std::string_view text) {
  std::string out;
  append_blob(out, text);
  return out;
}

std::string i64(std::int64_t value) {
  std::string out;
  append_i64(out, value);
  return out;
}

const std::string kReady(1, '\0');
const std::string kOne(1, '\1');  // not ready; wait cancelled

class StoreTableTest : public ::testing::Test {
 protected:
  static constexpr StoreClientId kAnn = 1, kBob = 2, kCid = 3;

  // Applies the requests in `bytes` for the client and gives what it was sent meanwhile.
  std::string ask(StoreClientId client, const std::string& bytes) {
    StoreRequestParser parser;
    parser.feed(store_hello() + bytes);
    while (true) {
      const Result<const StoreRequest*> request = parser.next();
      if (!request || *request == nullptr) break;
      last_ = table_.apply(client, **request);
    }
    return outbox_.take(client);
  }

  std::string set(StoreClientId client, std::string_view key, std::string_view value) {
    return ask(client, store_request(StoreCommand::kSet, {key, value}));
  }
  std::string get(std::string_view key) {
    return ask(kCid, store_request(StoreCommand::kGet, {key}));
  }
  std::string wait(StoreClientId client, const std::vector<std::string>& keys) {
    return ask(client, store_keys_request(StoreCommand::kWait, keys));
  }

  StoreLimits limits_{.max_keys = 8, .max_held_bytes = 4096};
  RecordingOutbox outbox_;
  StoreTable table_{limits_, outbox_};
  Result<void> last_;
};

TEST_F(StoreTableTest, GivesBackWhatWasSet) {
  EXPECT_EQ(set(kAnn, "key", "value"), "");
  EXPECT_EQ(get("key"), blob("value"));
  EXPECT_EQ(get("other"), blob(""));
}

TEST_F(StoreTableTest, CompareSetStoresIntoAnAbsentKeyOnlyWhenNothingWasExpected) {
  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kCompareSet, {"k", "old", "new"})), blob("old"));
  EXPECT_EQ(get("k"), blob(""));
  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kCompareSet, {"k", "", "first"})), blob("first"));
  EXPECT_EQ(get("k"), blob("first"));
}

TEST_F(StoreTableTest, CompareSetReplacesOnlyWhatWasExpected) {
  set(kAnn, "k", "first");

  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kCompareSet, {"k", "no", "x"})), blob("first"));
  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kCompareSet, {"k", "first", "x"})), blob("x"));
  EXPECT_EQ(get("k"), blob("x"));
}

TEST_F(StoreTableTest, AddCountsFromNothingAndStoresDecimalText) {
  EXPECT_EQ(ask(kAnn, store_add("n", 40)), i64(40));
  EXPECT_EQ(ask(kBob, store_add("n", -42)), i64(-2));
  EXPECT_EQ(get("n"), blob("-2"));
}

TEST_F(StoreTableTest, AddRefusesAValueThatIsNoNumber) {
  set(kAnn, "n", "12 apples");

  ask(kAnn, store_add("n", 1));

  ASSERT_FALSE(last_);
  EXPECT_EQ(last_.error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(get("n"), blob("12 apples"));
}

TEST_F(StoreTableTest, AddRefusesToOverflow) {
  set(kAnn, "n", std::to_string(INT64_MAX));

  ask(kAnn, store_add("n", 1));

  EXPECT_FALSE(last_);
}

TEST_F(StoreTableTest, CheckNeedsAllKeysAndCountsAQueueAsOne) {
  set(kAnn, "a", "1");
  EXPECT_EQ(ask(kAnn, store_keys_request(StoreCommand::kCheck, {"a", "q"})), kOne);

  ask(kAnn, store_request(StoreCommand::kQueuePush, {"q", "element"}));

  EXPECT_EQ(ask(kAnn, store_keys_request(StoreCommand::kCheck, {"a", "q"})), kReady);
}

TEST_F(StoreTableTest, WaitAnswersAtOnceWhenAllIsThere) {
  set(kAnn, "a", "1");

  EXPECT_EQ(wait(kBob, {"a"}), kReady);
  EXPECT_EQ(wait(kBob, {}), kReady);
  EXPECT_EQ(table_.num_waits(), 0u);
}

TEST_F(StoreTableTest, WaitAnswersOnceTheLastKeyHasArrived) {
  EXPECT_EQ(wait(kBob, {"a", "b", "a"}), "");
  set(kAnn, "b", "1");
  EXPECT_EQ(outbox_.take(kBob), "");

  ask(kAnn, store_add("a", 1));

  EXPECT_EQ(outbox_.take(kBob), kReady);
  EXPECT_EQ(table_.num_waits(), 0u);
}

TEST_F(StoreTableTest, EveryWayToStoreAKeyWakesItsWaiters) {
  for (const std::string& request : {store_request(StoreCommand::kSet, {"k", "v"}),
                                     store_request(StoreCommand::kCompareSet, {"k", "", "v"}),
                                     store_add("k", 1),
                                     store_request(StoreCommand::kAppend, {"k", "v"}),
                                     store_request(StoreCommand::kQueuePush, {"k", "v"})}) {
    RecordingOutbox outbox;
    StoreTable table(limits_, outbox);
    const auto apply = [&](StoreClientId client, const std::string& bytes) {
      StoreRequestParser parser;
      parser.feed(store_hello() + bytes);
      (void)parser.next();
      return table.apply(client, *parser.next().value()).has_value();
    };
    ASSERT_TRUE(
        apply(kBob, store_keys_request(StoreCommand::kWait, std::vector<std::string>{"k"})));

    ASSERT_TRUE(apply(kAnn, request));

    EXPECT_EQ(outbox.take(kBob), kReady) << static_cast<int>(request[0]);
  }
}

TEST_F(StoreTableTest, CancelWaitDropsTheWait) {
  wait(kBob, {"a"});

  EXPECT_EQ(ask(kBob, store_request(StoreCommand::kCancelWait)), kOne);
  set(kAnn, "a", "1");

  EXPECT_EQ(outbox_.take(kBob), "");
  EXPECT_EQ(table_.held_bytes(), 2u);
}

TEST_F(StoreTableTest, CancelWaitAnswersWithoutAWait) {
  EXPECT_EQ(ask(kBob, store_request(StoreCommand::kCancelWait)), kOne);
}

TEST_F(StoreTableTest, ASecondWaitWhileOneIsPendingIsRefused) {
  wait(kBob, {"a"});

  wait(kBob, {"b"});

  ASSERT_FALSE(last_);
  EXPECT_EQ(last_.error().code(), ErrorCode::kProtocol);
}

TEST_F(StoreTableTest, AClientThatLeftIsNotWoken) {
  wait(kBob, {"a", "b"});

  table_.forget(kBob);
  set(kAnn, "a", "1");
  set(kAnn, "b", "1");

  EXPECT_EQ(outbox_.take(kBob), "");
  EXPECT_EQ(table_.num_waits(), 0u);
}

TEST_F(StoreTableTest, DeleteSaysHowManyThereWere) {
  set(kAnn, "a", "1");

  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kDeleteKey, {"a"})), i64(1));
  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kDeleteKey, {"a"})), i64(0));
  EXPECT_EQ(table_.held_bytes(), 0u);
}

TEST_F(StoreTableTest, AppendMakesOneValue) {
  ask(kAnn, store_request(StoreCommand::kAppend, {"log", "one,"}));
  ask(kBob, store_request(StoreCommand::kAppend, {"log", "two"}));

  EXPECT_EQ(get("log"), blob("one,two"));
}

TEST_F(StoreTableTest, MultiGetAnswersInTheOrderAsked) {
  set(kAnn, "a", "1");
  set(kAnn, "b", "2");

  const std::string reply =
      ask(kAnn, store_keys_request(StoreCommand::kMultiGet, {"b", "none", "a"}));

  EXPECT_EQ(reply, blob("2") + blob("") + blob("1"));
}

TEST_F(StoreTableTest, MultiSetStoresAllAndWakes) {
  wait(kBob, {"a", "b"});
  std::string bytes = store_request(StoreCommand::kMultiSet);
  append_u64(bytes, 2);
  for (const char* text : {"a", "1", "b", "2"}) append_blob(bytes, text);

  ask(kAnn, bytes);

  EXPECT_EQ(outbox_.take(kBob), kReady);
  EXPECT_EQ(get("b"), blob("2"));
}

TEST_F(StoreTableTest, MultiSetThatDoesNotFitStoresNothing) {
  std::string bytes = store_request(StoreCommand::kMultiSet);
  append_u64(bytes, 2);
  for (const std::string& text :
       {std::string("a"), std::string("1"), std::string("b"), std::string(5000, 'x')}) {
    append_blob(bytes, text);
  }

  ask(kAnn, bytes);

  ASSERT_FALSE(last_);
  EXPECT_EQ(table_.num_keys(), 0u);
  EXPECT_EQ(table_.held_bytes(), 0u);
}

TEST_F(StoreTableTest, QueuesAreFirstInFirstOut) {
  ask(kAnn, store_request(StoreCommand::kQueuePush, {"q", "one"}));
  ask(kAnn, store_request(StoreCommand::kQueuePush, {"q", "two"}));

  EXPECT_EQ(ask(kBob, store_request(StoreCommand::kQueueLen, {"q"})), i64(2));
  EXPECT_EQ(ask(kBob, store_request(StoreCommand::kQueuePop, {"q"})), i64(2) + blob("one"));
  EXPECT_EQ(ask(kBob, store_request(StoreCommand::kQueuePop, {"q"})), i64(1) + blob("two"));
  EXPECT_EQ(ask(kBob, store_request(StoreCommand::kQueuePop, {"q"})), i64(0));
  EXPECT_EQ(table_.held_bytes(), 0u);
}

TEST_F(StoreTableTest, APushWakesOneWaiterTheOldest) {
  wait(kAnn, {"q"});
  wait(kBob, {"q"});

  ask(kCid, store_request(StoreCommand::kQueuePush, {"q", "element"}));

  EXPECT_EQ(outbox_.take(kAnn), kReady);
  EXPECT_EQ(outbox_.take(kBob), "");
}

TEST_F(StoreTableTest, APushGoesPastAWaiterThatNeedsMore) {
  wait(kAnn, {"q", "never"});
  wait(kBob, {"q"});

  ask(kCid, store_request(StoreCommand::kQueuePush, {"q", "element"}));

  EXPECT_EQ(outbox_.take(kBob), kReady);
}

TEST_F(StoreTableTest, CountsAndListsKeysWithoutQueues) {
  set(kAnn, "a", "1");
  ask(kAnn, store_request(StoreCommand::kQueuePush, {"q", "element"}));

  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kGetNumKeys)), i64(1));
  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kListKeys)), i64(1) + blob("a"));
}

TEST_F(StoreTableTest, PingEchoesItsNonce) {
  EXPECT_EQ(ask(kAnn, store_request(StoreCommand::kPing, 0x01020304)), "\x04\x03\x02\x01");
}

TEST_F(StoreTableTest, TooManyKeysAreRefusedAndOldOnesStayWritable) {
  for (int i = 0; i < 8; ++i) set(kAnn, "key" + std::to_string(i), "v");
  ASSERT_TRUE(last_);

  set(kAnn, "one more", "v");

  ASSERT_FALSE(last_);
  EXPECT_EQ(last_.error().code(), ErrorCode::kStoreLimit);
  set(kAnn, "key3", "w");
  EXPECT_TRUE(last_);
}

TEST_F(StoreTableTest, ValuesQueuesAndWaitsShareOneLimit) {
  set(kAnn, "a", std::string(3000, 'x'));
  ASSERT_TRUE(last_);

  ask(kAnn, store_request(StoreCommand::kQueuePush, {"q", std::string(1200, 'x')}));
  EXPECT_FALSE(last_);
  wait(kBob, {std::string(1200, 'k')});
  EXPECT_FALSE(last_);
  set(kAnn, "a", "");
  EXPECT_TRUE(last_);
  EXPECT_EQ(table_.held_bytes(), 1u);
}

}  // namespace
}  // namespace accel::supervisor::store_table_test

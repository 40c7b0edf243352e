// The contract of agent/coordinator/journal/state_store.h, for every store: a source that includes it names its store with
//
//   INSTANTIATE_TEST_SUITE_P(Mine, StateStoreContract, ::testing::Values(&make_my_backend), ...);
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/coordinator/journal/state_store.h"

namespace accel::agent::state_store_suite {

// Where the records of one store are; outlives the stores that it opens.
class StoreBackend {
 public:
  virtual ~StoreBackend() = default;
  // As the next coordinator does, after the death of the one before.
  [[nodiscard]] virtual std::unique_ptr<StateStore> open() = 0;
};

using MakeBackend = std::unique_ptr<StoreBackend> (*)();

class StateStoreContract : public ::testing::TestWithParam<MakeBackend> {
 protected:
  [[nodiscard]] std::unique_ptr<StateStore> open() {
    auto store = backend_->open();
    EXPECT_NE(store, nullptr);
    return store;
  }

 private:
  std::unique_ptr<StoreBackend> backend_ = GetParam()();
};

TEST_P(StateStoreContract, ANewOneIsEmpty) {
  EXPECT_THAT(open()->records(), ::testing::IsEmpty());
}

TEST_P(StateStoreContract, TheNextOneFindsTheNewestOfEachKeyWithoutForgottenOnes) {
  auto store = open();
  ASSERT_TRUE(store->write({"job/a", "1"}, false));
  ASSERT_TRUE(store->write({"job/ab", "2"}, true));
  ASSERT_TRUE(store->write({"job/a", "3"}, true));
  ASSERT_TRUE(store->write({"job/ab", ""}, true));
  store.reset();

  EXPECT_THAT(open()->records(), ::testing::ElementsAre(Record{"job/a", "3"}));
}

TEST_P(StateStoreContract, ItsOwnRecordsAreThoseThatItWrote) {
  auto store = open();
  ASSERT_TRUE(store->write({"b", "1"}, false));
  ASSERT_TRUE(store->write({"a", "2"}, false));

  EXPECT_THAT(store->records(),
              ::testing::UnorderedElementsAre(Record{"a", "2"}, Record{"b", "1"}));
}

TEST_P(StateStoreContract, AForgottenKeyMayBeWrittenAgain) {
  auto store = open();
  ASSERT_TRUE(store->write({"k", ""}, true));
  ASSERT_TRUE(store->write({"k", "1"}, true));
  ASSERT_TRUE(store->write({"k", ""}, true));
  ASSERT_TRUE(store->write({"k", "2"}, true));
  store.reset();

  EXPECT_THAT(open()->records(), ::testing::ElementsAre(Record{"k", "2"}));
}

TEST_P(StateStoreContract, BytesOfAnyKindAndLengthComeBack) {
  std::string all;
  for (int i = 0; i < 200'000; ++i) all += static_cast<char>(i * 7);
  auto store = open();
  ASSERT_TRUE(store->write({"k", all}, true));
  store.reset();

  EXPECT_THAT(open()->records(), ::testing::ElementsAre(Record{"k", all}));
}

TEST_P(StateStoreContract, ManyRecordsComeBack) {
  auto store = open();
  for (int i = 0; i < 450; ++i) {
    ASSERT_TRUE(store->write({"node/" + std::to_string(i), std::to_string(i)}, false));
  }
  store.reset();

  const auto records = open()->records();

  EXPECT_EQ(records.size(), 450U);
  for (const Record& record : records) EXPECT_EQ(record.key, "node/" + record.value);
}

TEST_P(StateStoreContract, OneAfterAnotherEachGoesOnFromTheOneBefore) {
  for (int i = 1; i <= 3; ++i) {
    auto store = open();
    EXPECT_EQ(store->records().size(), static_cast<std::size_t>(i - 1));
    ASSERT_TRUE(store->write({"k" + std::to_string(i), "v"}, true));
  }
}

}  // namespace accel::agent::state_store_suite

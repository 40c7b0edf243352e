#include "runtime/supervisor/store/store_protocol.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/store_client.h"

namespace accel::supervisor::store_protocol_test {
namespace {

using test::store_add;
using test::store_hello;
using test::store_keys_request;
using test::store_request;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoreRequestParserTest : public ::testing::Test {
 protected:
  StoreRequestParserTest() { parser_.feed(store_hello()), (void)parser_.next(); }

  const StoreRequest* parse(const std::string& bytes) {
    parser_.feed(bytes);
    const Result<const StoreRequest*> request = parser_.next();
    return request ? *request : nullptr;
  }

  ErrorCode error_of(const std::string& bytes) {
    parser_.feed(bytes);
    const Result<const StoreRequest*> request = parser_.next();
    return request ? ErrorCode::kCount_ : request.error().code();
  }

  std::string length_only(StoreCommand command, std::uint64_t length) {
    std::string bytes = store_request(command);
    append_u64(bytes, length);
    return bytes;
  }

  StoreRequestParser parser_;
};

TEST_F(StoreRequestParserTest, ReadsEachShapeOfRequest) {
  const StoreRequest* set = parse(store_request(StoreCommand::kSet, {"key", "value"}));
  ASSERT_NE(set, nullptr);
  EXPECT_THAT(set->keys, ElementsAre("key"));
  EXPECT_THAT(set->values, ElementsAre("value"));

  const StoreRequest* compare = parse(store_request(StoreCommand::kCompareSet, {"k", "", "new"}));
  ASSERT_NE(compare, nullptr);
  EXPECT_THAT(compare->values, ElementsAre("", "new"));

  const StoreRequest* add = parse(store_add("n", -7));
  ASSERT_NE(add, nullptr);
  EXPECT_EQ(add->delta, -7);

  const StoreRequest* wait = parse(store_keys_request(StoreCommand::kWait, {"a", "b"}));
  ASSERT_NE(wait, nullptr);
  EXPECT_THAT(wait->keys, ElementsAre("a", "b"));

  const StoreRequest* ping = parse(store_request(StoreCommand::kPing, 0xDEADBEEF));
  ASSERT_NE(ping, nullptr);
  EXPECT_EQ(ping->number, 0xDEADBEEF);

  const StoreRequest* keys = parse(store_request(StoreCommand::kListKeys));
  ASSERT_NE(keys, nullptr);
  EXPECT_EQ(keys->command, StoreCommand::kListKeys);
}

TEST_F(StoreRequestParserTest, ReadsPairsOfAMultiSet) {
  std::string bytes = store_request(StoreCommand::kMultiSet);
  append_u64(bytes, 2);
  for (const char* blob : {"a", "1", "b", "2"}) append_blob(bytes, blob);

  const StoreRequest* request = parse(bytes);

  ASSERT_NE(request, nullptr);
  EXPECT_THAT(request->keys, ElementsAre("a", "b"));
  EXPECT_THAT(request->values, ElementsAre("1", "2"));
}

TEST_F(StoreRequestParserTest, ReadsPipelinedRequestsThatArriveByteByByte) {
  const std::string bytes = store_request(StoreCommand::kSet, {"key", "value"}) +
                            store_request(StoreCommand::kGet, {"key"}) +
                            store_keys_request(StoreCommand::kWait, {"x", "yy"});
  std::vector<StoreCommand> seen;

  for (const char byte : bytes) {
    if (const StoreRequest* request = parse(std::string(1, byte))) seen.push_back(request->command);
  }

  EXPECT_THAT(seen, ElementsAre(StoreCommand::kSet, StoreCommand::kGet, StoreCommand::kWait));
  EXPECT_TRUE(parser_.is_between_requests());
}

TEST_F(StoreRequestParserTest, TellsWhetherARequestHasBegun) {
  EXPECT_TRUE(parser_.is_between_requests());

  parser_.feed(store_request(StoreCommand::kSet));
  (void)parser_.next();

  EXPECT_FALSE(parser_.is_between_requests());
  EXPECT_EQ(parser_.pending_bytes(), 1u);
}

TEST_F(StoreRequestParserTest, RefusesALengthBeforeItsBytesCome) {
  EXPECT_EQ(error_of(length_only(StoreCommand::kGet, kStoreMaxKeyBytes + 1)),
            ErrorCode::kStoreLimit);
}

TEST_F(StoreRequestParserTest, TakesAKeyAndAValueOfExactlyTheLimit) {
  const std::string key(kStoreMaxKeyBytes, 'k');
  const std::string value(kStoreMaxValueBytes, 'v');

  const StoreRequest* request = parse(store_request(StoreCommand::kSet, {key, value}));

  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->keys[0], key);
  EXPECT_EQ(request->values[0], value);
}

TEST_F(StoreRequestParserTest, RefusesAValueAboveItsLimit) {
  std::string bytes = store_request(StoreCommand::kSet, {"key"});
  append_u64(bytes, kStoreMaxValueBytes + 1);

  EXPECT_EQ(error_of(bytes), ErrorCode::kStoreLimit);
}

TEST_F(StoreRequestParserTest, RefusesALengthThatWouldWrapAround) {
  EXPECT_EQ(error_of(length_only(StoreCommand::kGet, ~std::uint64_t{0})), ErrorCode::kStoreLimit);
}

TEST_F(StoreRequestParserTest, RefusesTooManyKeys) {
  EXPECT_EQ(error_of(length_only(StoreCommand::kCheck, kStoreMaxKeysPerRequest + 1)),
            ErrorCode::kStoreLimit);
}

TEST_F(StoreRequestParserTest, RefusesARequestThatIsTooLargeInAll) {
  std::string bytes = store_request(StoreCommand::kMultiSet);
  append_u64(bytes, 9);
  const std::string value(kStoreMaxValueBytes, 'v');
  for (int i = 0; i < 9; ++i) {
    append_blob(bytes, "k");
    append_blob(bytes, value);
  }

  EXPECT_EQ(error_of(bytes), ErrorCode::kStoreLimit);
}

TEST_F(StoreRequestParserTest, RefusesAnUnknownCodeAndNamesIt) {
  parser_.feed(std::string(1, static_cast<char>(18)));

  const Result<const StoreRequest*> request = parser_.next();

  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().code(), ErrorCode::kProtocol);
  EXPECT_THAT(request.error().message(), HasSubstr("18"));
}

TEST_F(StoreRequestParserTest, RefusesASecondValidate) {
  EXPECT_EQ(error_of(store_hello()), ErrorCode::kProtocol);
}

TEST(StoreRequestParser, RefusesARequestBeforeValidate) {
  StoreRequestParser parser;
  parser.feed(store_request(StoreCommand::kPing, 1));

  EXPECT_FALSE(parser.next());
}

TEST(StoreRequestParser, RefusesAnotherMagic) {
  StoreRequestParser parser;
  parser.feed(store_request(StoreCommand::kValidate, kStoreMagic + 1));

  EXPECT_FALSE(parser.next());
}

TEST(StoreRequestParser, ASilentNewConnectionIsNotBetweenRequests) {
  const StoreRequestParser parser;

  EXPECT_FALSE(parser.is_between_requests());
}

}  // namespace
}  // namespace accel::supervisor::store_protocol_test

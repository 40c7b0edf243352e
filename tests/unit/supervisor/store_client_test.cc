// Exchanges as bytes, and a client against the real server.

#include "runtime/supervisor/store/store_client.h"

#include <boost/asio/error.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/store/store_protocol.h"
#include "runtime/supervisor/store/store_server.h"

namespace accel::supervisor::store_client_test {
namespace {

using ::testing::ElementsAre;

std::string blob(std::string_view bytes) {
  std::string out;
  append_blob(out, bytes);
  return out;
}

StoreExchange everything() {
  StoreExchange wanted;
  wanted.swaps = {{"claim", "", "mine"}, {"claim", "", "yours"}};
  wanted.sets = {{"a", "1"}, {"b", "2"}};
  wanted.counter = "joins";
  wanted.reads = {"a", "claim", "nothing"};
  return wanted;
}

TEST(StoreAnswerParser, TakesAnAnswerInPiecesOfAnySize) {
  std::string bytes = blob("mine") + blob("mine");
  append_i64(bytes, 3);
  bytes += blob("1") + blob("mine") + blob("");
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
    StoreAnswerParser parser(everything());
    std::optional<StoreAnswer> answer;
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      ASSERT_FALSE(answer);
      auto fed = parser.feed(std::string_view(bytes).substr(at, size));
      ASSERT_TRUE(fed);
      answer = *std::move(fed);
    }
    ASSERT_TRUE(answer) << size;
    EXPECT_EQ(answer->count, 3);
    EXPECT_THAT(answer->values, ElementsAre("1", "mine", ""));
  }
}

TEST(StoreAnswerParser, RefusesWhatNoStoreOfOursWouldSend) {
  StoreExchange wanted;
  wanted.reads = {"a"};
  std::string huge;
  append_u64(huge, StoreAnswerParser::kMaxValueBytes + 1);
  EXPECT_EQ(StoreAnswerParser(wanted).feed(huge).error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(StoreAnswerParser(wanted).feed(blob("1") + "x").error().code(), ErrorCode::kProtocol);
}

class StoreClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = std::move(StoreServer::listen(context_, {.policy = {.port = 0}})).value();
    store_ = TcpEndpoint(boost::asio::ip::address_v4::loopback(), server_->port());
  }

  // Until `is_over`.
  void run(const bool& is_over) {
    while (!is_over) context_.run_one();
  }

  boost::asio::io_context context_{1};
  std::unique_ptr<StoreServer> server_;
  TcpEndpoint store_;
};

TEST_F(StoreClientTest, WhatIsWrittenIsSeenByTheReadsOfTheSameExchange) {
  StoreClient client(context_);
  bool is_over = false;
  StoreAnswer answer;
  client.connect(store_, [&](const boost::system::error_code& failure) {
    ASSERT_FALSE(failure);
    client.exchange(everything(), [&](const Result<StoreAnswer>& answered) {
      ASSERT_TRUE(answered);
      answer = *answered;
      is_over = true;
    });
  });
  run(is_over);
  EXPECT_THAT(answer.swapped, ElementsAre("mine", "mine"));
  EXPECT_EQ(answer.count, 1);
  EXPECT_THAT(answer.values, ElementsAre("1", "mine", ""));
}

TEST_F(StoreClientTest, SaysWhenTheStoreEnds) {
  StoreClient client(context_);
  bool is_over = false;
  std::optional<Error> error;
  client.connect(store_, [&](const boost::system::error_code& failure) {
    ASSERT_FALSE(failure);
    server_.reset();
    client.exchange(everything(), [&](const Result<StoreAnswer>& answered) {
      ASSERT_FALSE(answered);
      error = answered.error();
      is_over = true;
    });
  });
  run(is_over);
  EXPECT_EQ(error->code(), ErrorCode::kStoreUnreachable);
}

TEST_F(StoreClientTest, SaysWhenNobodyListens) {
  server_.reset();
  StoreClient client(context_);
  bool is_over = false;
  boost::system::error_code error;
  client.connect(store_, [&](const boost::system::error_code& failure) {
    error = failure;
    is_over = true;
  });
  run(is_over);
  EXPECT_EQ(error, boost::asio::error::connection_refused);
}

}  // namespace
}  // namespace accel::supervisor::store_client_test

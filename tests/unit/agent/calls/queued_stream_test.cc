#include "agent/calls/queued_stream.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

namespace accel::agent::queued_stream_test {
namespace {

struct Message {
  std::size_t bytes = 0;
  [[nodiscard]] std::size_t ByteSizeLong() const { return bytes; }
};

// What gRPC's reactors look like to a stream; the test is the client.
class Client {
 public:
  virtual ~Client() = default;
  virtual void OnWriteDone(bool ok) = 0;
  virtual void OnCancel() = 0;
  virtual void OnDone() = 0;

  std::vector<std::size_t> written;
  std::optional<grpc::Status> end;

 protected:
  void StartWrite(const Message* message) { written.push_back(message->bytes); }
  void Finish(const grpc::Status& status) { end = status; }
};

class QueuedStreamTest : public testing::Test {
 protected:
  using Stream = QueuedStream<Client, Message>;

  void take_one(bool ok = true) {
    stream_->OnWriteDone(ok);
    loop_.restart();
    loop_.run();
  }
  boost::asio::io_context loop_;
  std::shared_ptr<Stream> stream_ = std::make_shared<Stream>(loop_, 4);
};

TEST_F(QueuedStreamTest, WritesOneAtATimeAndEndsWhenAllAreTaken) {
  stream_->send({1});
  stream_->send({2});
  stream_->finish(grpc::Status::OK);
  EXPECT_THAT(stream_->written, testing::ElementsAre(1));
  take_one();
  EXPECT_THAT(stream_->written, testing::ElementsAre(1, 2));
  EXPECT_FALSE(stream_->end);
  take_one();
  ASSERT_TRUE(stream_->end);
  EXPECT_TRUE(stream_->end->ok());
}

TEST_F(QueuedStreamTest, AReaderThatIsManyMessagesBehindLosesTheStream) {
  for (int i = 0; i < 5; ++i) stream_->send({1});
  EXPECT_FALSE(stream_->is_open());
  take_one();
  ASSERT_TRUE(stream_->end);
  EXPECT_EQ(stream_->end->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(QueuedStreamTest, Fault64AReaderThatIsManyBytesBehindLosesTheStream) {
  stream_->send({Stream::kMaxQueuedBytes / 2});
  stream_->send({Stream::kMaxQueuedBytes / 2});
  EXPECT_TRUE(stream_->is_open());
  take_one();  // there is room again for as much
  stream_->send({Stream::kMaxQueuedBytes / 2});
  EXPECT_TRUE(stream_->is_open());
  stream_->send({1});
  EXPECT_FALSE(stream_->is_open());
}

TEST_F(QueuedStreamTest, WhatWasSharedIsGivenBackWhenTheCallIsOver) {
  std::vector<std::string> said;
  stream_->live_until_done();
  stream_->call_when_over([&] { said.push_back("over"); });
  stream_->OnCancel();
  loop_.run();
  EXPECT_THAT(said, testing::IsEmpty());
  stream_->OnDone();
  loop_.restart();
  loop_.run();
  EXPECT_THAT(said, testing::ElementsAre("over"));
}

}  // namespace
}  // namespace accel::agent::queued_stream_test

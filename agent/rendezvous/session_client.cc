#include "agent/rendezvous/session_client.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include <boost/asio/post.hpp>

#include "agent/calls/client_channel.h"
#include "agent/tls/tls_credentials.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr int kMostRedirects = 3;  // in a row without a pause: the leader may be changing

// Asks for one page of members after the other, and keeps itself alive until the last one has come.
class MemberPages : public std::enable_shared_from_this<MemberPages> {
 public:
  MemberPages(std::weak_ptr<OpenCalls> calls,
              const std::shared_ptr<grpc::Channel>& channel,
              const std::string& job_uuid,
              std::function<void(std::vector<v1::Member>)> done)
      : calls_(std::move(calls)), stub_(v1::Rendezvous::NewStub(channel)), done_(std::move(done)) {
    request_.set_job_uuid(job_uuid);
  }

  // Nothing once the client is gone.
  void ask() {
    const auto calls = calls_.lock();
    if (calls == nullptr) return;
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(std::chrono::system_clock::now() + kUnaryDeadline);
    page_.Clear();
    calls->begin(*context_);
    stub_->async()->GetMembers(
        context_.get(),
        &request_,
        &page_,
        [&calls = *calls, &context = *context_, self = shared_from_this()](
            const grpc::Status& status) mutable {
          calls.end(context, [self = std::move(self), status] { self->take(status); });
        });
  }

 private:
  void take(const grpc::Status& status) {
    if (calls_.expired()) return;
    if (!status.ok()) return done_({});
    members_.insert(members_.end(), page_.members().begin(), page_.members().end());
    if (page_.next() <= request_.from()) return done_(std::move(members_));  // 0: the last one
    request_.set_from(page_.next());
    ask();
  }

  const std::weak_ptr<OpenCalls> calls_;  // of the client
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
  std::function<void(std::vector<v1::Member>)> done_;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::MembersReq request_;
  v1::MembersPage page_;
  std::vector<v1::Member> members_;
};

}  // namespace

// The client's reactor. Kept alive by itself until OnDone; `owner` is cleared when the client goes first.
class SessionClient::Stream final : public grpc::ClientBidiReactor<v1::AgentMsg, v1::CoordMsg>,
                                    public std::enable_shared_from_this<Stream> {
 public:
  Stream(SessionClient& owner, asio::io_context& loop) : owner_(&owner), loop_(loop) {}

  void begin(v1::Rendezvous::Stub& stub) {
    self_ = shared_from_this();
    stub.async()->Session(&context_, this);
    // Writes and reads may be started from the loop at any time while the hold is there.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  void send(v1::AgentMsg message) {
    if (is_ending_) return;
    queue_.push_back(std::move(message));
    advance();
  }

  void end() {
    if (is_ending_) return;
    context_.TryCancel();
    let_go();
  }

  void forget_owner() { owner_ = nullptr; }

  [[nodiscard]] std::string server_certificate() const {
    const auto server = is_answered_ ? context_.auth_context() : nullptr;
    return server == nullptr ? "" : peer_certificate(*server);
  }

  void OnReadDone(bool ok) override {
    post([ok](Stream& self) {
      if (!ok) return self.let_go();  // the call is over, and its status says why
      self.is_answered_ = true;
      if (self.owner_ != nullptr && !self.is_ending_) {
        if (self.incoming_.has_redirect()) {
          self.owner_->on_redirect(self.incoming_.redirect().leader());
        } else {
          self.owner_->handlers_.on_message(self.incoming_);
        }
      }
      if (!self.is_ending_) self.StartRead(&self.incoming_);
    });
  }
  void OnWriteDone(bool ok) override {
    post([ok](Stream& self) {
      self.is_writing_ = false;
      self.queue_.pop_front();
      if (ok) self.advance();  // else the read fails too
    });
  }
  void OnDone(const grpc::Status& status) override {
    post([status](Stream& self) {
      if (self.owner_ != nullptr) self.owner_->on_stream_closed(status);
      self.self_.reset();
    });
  }

 private:
  template <typename Work>
  void post(Work work) {
    asio::post(loop_, [self = shared_from_this(), work] { work(*self); });
  }

  void let_go() {
    if (is_ending_) return;
    is_ending_ = true;
    RemoveHold();
  }

  void advance() {
    if (is_writing_ || is_ending_ || queue_.empty()) return;
    is_writing_ = true;
    StartWrite(&queue_.front());
  }

  SessionClient* owner_;
  asio::io_context& loop_;
  grpc::ClientContext context_;
  v1::CoordMsg incoming_;
  std::deque<v1::AgentMsg> queue_;
  bool is_writing_ = false;
  bool is_answered_ = false;
  bool is_ending_ = false;
  std::shared_ptr<Stream> self_;
};

SessionClient::SessionClient(asio::io_context& loop,
                             std::shared_ptr<grpc::Channel> channel,
                             Handlers handlers)
    : loop_(loop),
      home_(std::move(channel)),
      channel_(home_),
      stub_(v1::Rendezvous::NewStub(channel_)),
      handlers_(std::move(handlers)),
      retry_(loop) {}

SessionClient::~SessionClient() {
  if (stream_) stream_->forget_owner();
}

void SessionClient::connect() {
  stream_ = std::make_shared<Stream>(*this, loop_);
  stream_->begin(*stub_);
  handlers_.on_open();
}

std::string SessionClient::server_certificate() const {
  return stream_ ? stream_->server_certificate() : "";
}

void SessionClient::move_to(std::shared_ptr<grpc::Channel> channel) {
  home_ = std::move(channel);
  leader_.clear();
  asked_.clear();
  pause_ = {};
  num_redirects_ = 0;
  if (stream_) return stream_->end();
  use(home_);
  retry_.expires_after(std::chrono::seconds(0));
  wait_to_connect();
}

void SessionClient::welcomed(int num_nodes) {
  pause_ = {.num_losses = 0, .num_nodes = num_nodes};
  num_redirects_ = 0;
}

void SessionClient::use(std::shared_ptr<grpc::Channel> channel) {
  if (channel == channel_) return;
  channel_ = std::move(channel);
  stub_ = v1::Rendezvous::NewStub(channel_);
}

void SessionClient::on_redirect(const std::string& leader) {
  if (open_channel_) leader_ = leader;
  reset();
}

void SessionClient::send(v1::AgentMsg message) {
  if (stream_) stream_->send(std::move(message));
}

void SessionClient::reset() {
  if (stream_) stream_->end();
}

void SessionClient::close(std::function<void()> done) {
  is_closing_ = true;
  on_last_closed_ = std::move(done);
  retry_.cancel();
  if (stream_) {
    stream_->end();
  } else {
    asio::post(loop_, on_last_closed_);
  }
}

void SessionClient::on_stream_closed(const grpc::Status& status) {
  stream_.reset();
  handlers_.on_closed(status);
  if (is_closing_) return on_last_closed_();
  const std::string leader = std::exchange(leader_, {});
  auto channel = leader.empty() ? nullptr : open_channel_(leader);
  asked_ = channel ? leader : "";
  use(channel ? channel : home_);
  if (channel && num_redirects_++ < kMostRedirects) return connect();
  ++pause_.num_losses;
  pause_.chance = std::uniform_real_distribution<double>(0, 1)(draw_);
  retry_.expires_after(reconnect_pause(pause_));
  wait_to_connect();
}

void SessionClient::wait_to_connect() {
  retry_.async_wait([this](const boost::system::error_code& error) {
    // The wait may have been over before it was cancelled, or begun anew.
    if (!error && !stream_ && !is_closing_) connect();
  });
}

void SessionClient::get_members(const std::string& job_uuid,
                                std::function<void(std::vector<v1::Member>)> done) {
  std::make_shared<MemberPages>(calls_, channel_, job_uuid, std::move(done))->ask();
}

}  // namespace accel::agent

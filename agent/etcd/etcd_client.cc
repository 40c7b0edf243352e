#include "agent/etcd/etcd_client.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>

#include <sys/stat.h>

#include "runtime/clock.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

// A member that is gone without a word is noticed after so long; etcd refuses pings that come more often than every 5 s.
constexpr int kPingEveryMs = 10'000;
constexpr int kPingLimitMs = 3'000;

Result<std::string> read_tls_file(const std::string& path, bool is_key) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad())
    return Error(ErrorCode::kTls, path + " cannot be read: " + errno_text(errno));
  struct stat info {};
  if (is_key && (::stat(path.c_str(), &info) != 0 || (info.st_mode & 0077) != 0)) {
    return Error(ErrorCode::kTls, path + " may be read by other users", "chmod 600 " + path);
  }
  return text.str();
}

Result<std::shared_ptr<grpc::ChannelCredentials>> etcd_credentials(const TlsFiles& files) {
  if (files.authority.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  auto authority = read_tls_file(files.authority, false);
  if (!authority) return std::move(authority).error();
  options.pem_root_certs = *std::move(authority);
  if (!files.certificate.empty()) {
    auto certificate = read_tls_file(files.certificate, false);
    if (!certificate) return std::move(certificate).error();
    auto key = read_tls_file(files.key, true);
    if (!key) return std::move(key).error();
    options.pem_cert_chain = *std::move(certificate);
    options.pem_private_key = *std::move(key);
  }
  return grpc::SslCredentials(options);
}

// What etcd has no code for comes as UNKNOWN: that its own clock ran out before ours, or raft dropped the proposal.
bool may_another_answer(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::UNKNOWN ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

Error etcd_refusal(const grpc::Status& status, const std::string& endpoint) {
  const std::string text = "etcd at " + endpoint + " refused: " + printable(status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Error(
          ErrorCode::kDiskFull,
          text,
          "compact and defragment etcd, then `etcdctl alarm disarm`; see --quota-backend-bytes");
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return Error(ErrorCode::kAuthentication,
                   text,
                   "see etcd.certificate and etcd.key, and what that user may do in etcd");
    default:
      return Error(ErrorCode::kInvalidArgument, text);
  }
}

// Whether the last try to connect failed. A channel that was never connected is not away.
bool is_away(grpc::Channel& channel) {
  return channel.GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE;
}

std::string failure_text(const grpc::Status& status, const EtcdTiming& timing) {
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED)
    return printable(status.error_message());
  return "no answer (a call may take " + std::to_string(timing.call_limit.count()) + " ms)";
}

Error nobody_answers(const std::vector<std::pair<std::string, std::string>>& said) {
  std::string tried;
  for (const auto& [endpoint, text] : said) tried += (tried.empty() ? "" : ", ") + endpoint;
  Error error(ErrorCode::kEtcdUnreachable, "etcd does not answer at " + tried);
  for (const auto& [endpoint, text] : said) error.with_detail("etcd", endpoint + ": " + text);
  return error;
}

// One call at one member.
template <typename Response>
struct Attempt {
  grpc::ClientContext context;
  Response response;
  grpc::Status status;  // when it is over
};

// Its end cancels what still runs, and waits for that: nothing of a call outlives it, so gRPC's threads never destroy a
// channel, which would wait for them.
template <typename Response>
class Race {
 public:
  explicit Race(std::size_t num_members) : attempts_(num_members) {}
  ~Race() {
    for (std::size_t i = 0; i < num_asked_; ++i) attempts_[i].context.TryCancel();
    while (num_running() > 0) (void)next(TimePoint::max());
  }
  Race(const Race&) = delete;
  Race& operator=(const Race&) = delete;

  [[nodiscard]] std::size_t num_asked() const { return num_asked_; }
  [[nodiscard]] std::size_t num_running() const { return num_asked_ - num_given_; }
  [[nodiscard]] std::size_t place_of(const Attempt<Response>& attempt) const {
    return static_cast<std::size_t>(&attempt - attempts_.data());
  }

  Attempt<Response>& begin() { return attempts_[num_asked_++]; }
  // On any thread.
  void end(Attempt<Response>& attempt, grpc::Status status) {
    const std::lock_guard lock(mutex_);
    attempt.status = std::move(status);
    over_.push_back(&attempt);
    changed_.notify_one();
  }
  // One that is over and was not given yet; none until then: nullptr.
  Attempt<Response>* next(TimePoint until) {
    std::unique_lock lock(mutex_);
    const auto is_there = [this] { return !over_.empty(); };
    if (until == TimePoint::max()) {
      changed_.wait(lock, is_there);
    } else if (!changed_.wait_until(lock, until, is_there)) {
      return nullptr;
    }
    Attempt<Response>* first = over_.front();
    over_.pop_front();
    ++num_given_;
    return first;
  }

 private:
  std::vector<Attempt<Response>> attempts_;  // in the order of asking; never moved
  std::size_t num_asked_ = 0;
  std::size_t num_given_ = 0;  // of those that are over
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Attempt<Response>*> over_;
};

// A stream that is cut after its first answer: etcd would keep it for more of them.
class OneKeepAlive final : public grpc::ClientBidiReactor<etcdserverpb::LeaseKeepAliveRequest,
                                                          etcdserverpb::LeaseKeepAliveResponse> {
 public:
  OneKeepAlive(std::int64_t lease,
               grpc::ClientContext* context,
               etcdserverpb::LeaseKeepAliveResponse* response,
               std::function<void(grpc::Status)> done)
      : context_(context), response_(response), done_(std::move(done)) {
    request_.set_id(lease);
  }

  void begin(etcdserverpb::Lease::Stub& stub) {
    stub.async()->LeaseKeepAlive(context_, this);
    StartWrite(&request_);
    StartRead(response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    is_answered_ = true;
    context_->TryCancel();
  }
  void OnDone(const grpc::Status& status) override {
    const grpc::Status ended(grpc::StatusCode::UNAVAILABLE, "it ended the stream");
    done_(is_answered_ ? grpc::Status::OK : status.ok() ? ended : status);
    delete this;
  }

 private:
  etcdserverpb::LeaseKeepAliveRequest request_;
  grpc::ClientContext* context_;  // both are there until done_ was called
  etcdserverpb::LeaseKeepAliveResponse* response_;
  std::function<void(grpc::Status)> done_;
  bool is_answered_ = false;
};

}  // namespace

Result<std::shared_ptr<EtcdClient>> EtcdClient::make(const EtcdSettings& settings,
                                                     EtcdTiming timing) {
  auto credentials = etcd_credentials(settings.tls);
  if (!credentials) return std::move(credentials).error();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // How long an attempt to connect may take, TLS included; a refused one is known at once.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingLimitMs);
  // A page of records may be long: etcd itself bounds each of them to 1.5 MiB.
  arguments.SetMaxReceiveMessageSize(256 * 1024 * 1024);
  std::shared_ptr<EtcdClient> client(new EtcdClient(timing));
  for (const std::string& endpoint : settings.endpoints) {
    Member member;
    member.endpoint = endpoint;
    member.channel = grpc::CreateCustomChannel(endpoint, *credentials, arguments);
    member.keys = etcdserverpb::KV::NewStub(member.channel);
    member.leases = etcdserverpb::Lease::NewStub(member.channel);
    client->members_.push_back(std::move(member));
  }
  return client;
}

// The members in the order in which they are asked: from the one that answered last on, then those to which no connection
// could be made lately.
std::vector<std::size_t> EtcdClient::order_of_asking() const {
  std::vector<std::size_t> order(members_.size());
  const std::size_t first = first_.load();
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = (first + i) % members_.size();
  std::stable_partition(order.begin(), order.end(), [this](std::size_t index) {
    return !is_away(*members_[index].channel);
  });
  return order;
}

template <typename Response>
Result<Response> EtcdClient::call(const Ask<Response>& ask) {
  const std::vector<std::size_t> order = order_of_asking();
  const auto limit = std::chrono::system_clock::now() + timing_.call_limit;
  TimePoint next_at{};
  std::vector<std::pair<std::string, std::string>> said;
  Race<Response> race(order.size());
  while (said.size() < order.size()) {
    const bool is_time = race.num_running() == 0 || SteadyClock().now() >= next_at;
    if (race.num_asked() < order.size() && is_time) {
      Member& member = members_[order[race.num_asked()]];
      Attempt<Response>& attempt = race.begin();
      next_at = SteadyClock().now() + timing_.ask_next_after;
      // One that was away has this time to come back.
      attempt.context.set_wait_for_ready(is_away(*member.channel));
      attempt.context.set_deadline(
          std::max(limit, std::chrono::system_clock::now() + timing_.ask_next_after));
      ask(member, &attempt.context, &attempt.response, [&race, &attempt](grpc::Status status) {
        race.end(attempt, std::move(status));
      });
    }
    const bool is_last = race.num_asked() == order.size();
    Attempt<Response>* over = race.next(is_last ? TimePoint::max() : next_at);
    if (over == nullptr) continue;
    const std::size_t index = order[race.place_of(*over)];
    if (may_another_answer(over->status)) {
      said.emplace_back(members_[index].endpoint, failure_text(over->status, timing_));
      continue;
    }
    if (!over->status.ok()) return etcd_refusal(over->status, members_[index].endpoint);
    first_.store(index);
    return std::move(over->response);
  }
  return nobody_answers(said);
}

Result<etcdserverpb::RangeResponse> EtcdClient::range(const etcdserverpb::RangeRequest& request) {
  return call<etcdserverpb::RangeResponse>(
      [&](Member& member, auto* context, auto* response, auto done) {
        member.keys->async()->Range(context, &request, response, std::move(done));
      });
}

Result<etcdserverpb::TxnResponse> EtcdClient::txn(const etcdserverpb::TxnRequest& request) {
  return call<etcdserverpb::TxnResponse>(
      [&](Member& member, auto* context, auto* response, auto done) {
        member.keys->async()->Txn(context, &request, response, std::move(done));
      });
}

Result<EtcdClient::Lease> EtcdClient::grant(std::chrono::seconds ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl.count());
  auto granted = call<etcdserverpb::LeaseGrantResponse>(
      [&](Member& member, auto* context, auto* response, auto done) {
        member.leases->async()->LeaseGrant(context, &request, response, std::move(done));
      });
  if (!granted) return std::move(granted).error();
  return Lease{granted->id(), std::chrono::seconds(granted->ttl())};
}

Result<EtcdClient::Lease> EtcdClient::keep_alive(std::int64_t lease) {
  auto kept = call<etcdserverpb::LeaseKeepAliveResponse>(
      [lease](Member& member, auto* context, auto* response, auto done) {
        // Deletes itself at its end.
        (new OneKeepAlive(lease, context, response, std::move(done)))->begin(*member.leases);
      });
  if (!kept) return std::move(kept).error();
  return Lease{kept->id(), std::chrono::seconds(kept->ttl())};
}

Result<void> EtcdClient::revoke(std::int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  auto revoked = call<etcdserverpb::LeaseRevokeResponse>(
      [&](Member& member, auto* context, auto* response, auto done) {
        member.leases->async()->LeaseRevoke(
            context, &request, response, [done](const grpc::Status& status) {
              const bool is_gone = status.error_code() == grpc::StatusCode::NOT_FOUND;
              done(is_gone ? grpc::Status::OK : status);
            });
      });
  if (!revoked) return std::move(revoked).error();
  return {};
}

// ---- a key that belongs to whoever wrote it first ----

EtcdClient::Holder holder_in(const mvccpb::KeyValue& pair) {
  return {pair.value(), pair.lease(), static_cast<std::uint64_t>(pair.create_revision())};
}

Result<EtcdClient::KeyState> EtcdClient::look_at(const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  const auto found = range(request);
  if (!found) return found.error();
  KeyState state{{}, static_cast<std::uint64_t>(found->header().revision())};
  if (!found->kvs().empty()) state.holder = holder_in(found->kvs(0));
  return state;
}

// The same request may have been carried out before, for another member that was asked: then what stands there has this lease.
Result<EtcdClient::Holder> EtcdClient::claim(const std::string& key,
                                             const std::string& value,
                                             std::int64_t lease) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare& absent = *request.add_compare();
  absent.set_key(key);
  absent.set_target(etcdserverpb::Compare::CREATE);
  absent.set_create_revision(0);
  auto& put = *request.add_success()->mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  put.set_lease(lease);
  request.add_failure()->mutable_request_range()->set_key(key);
  const auto answer = txn(request);
  if (!answer) return answer.error();
  if (answer->succeeded())
    return Holder{value, lease, static_cast<std::uint64_t>(answer->header().revision())};
  if (answer->responses_size() != 1 || answer->responses(0).response_range().kvs().empty())
    return Error(ErrorCode::kProtocol, "etcd answered a transaction with something else");
  return holder_in(answer->responses(0).response_range().kvs(0));
}

std::shared_ptr<grpc::Channel> EtcdClient::channel() const {
  return members_[first_.load()].channel;
}

// ---- watches ----

EtcdWatch::EtcdWatch(const EtcdClient& client,
                     const std::string& key,
                     std::int64_t from_revision,
                     Handlers handlers)
    : stub_(etcdserverpb::Watch::NewStub(client.channel())),
      handlers_(std::move(handlers)),
      thread_([this, key, from_revision] { run(key, from_revision); }) {}

EtcdWatch::~EtcdWatch() {
  context_.TryCancel();
  thread_.join();
}

void EtcdWatch::run(const std::string& key, std::int64_t from_revision) {
  auto stream = stub_->Watch(&context_);
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(from_revision);
  bool is_open = stream->Write(request);
  etcdserverpb::WatchResponse response;
  while (is_open && stream->Read(&response)) {
    for (const mvccpb::Event& event : response.events()) handlers_.on_event(event);
    is_open = !response.canceled();
  }
  context_.TryCancel();
  stream->Finish();
  handlers_.on_broken();
}

std::string prefix_end(std::string prefix) {
  while (!prefix.empty()) {
    auto& last = reinterpret_cast<unsigned char&>(prefix.back());
    if (last < 0xff) {
      ++last;
      return prefix;
    }
    prefix.pop_back();
  }
  return std::string(1, '\0');  // to the end of all keys
}

}  // namespace accel::agent

#include "agent/main/health_watch.h"

#include <utility>

#include <boost/asio/post.hpp>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>

namespace accel::agent {
namespace {

constexpr const char* kCheckMethod = "/grpc.health.v1.Health/Check";
// HealthCheckResponse{status: SERVING}: field 1, varint, 1. The empty request asks for the server as a whole.
constexpr std::string_view kServing("\x08\x01", 2);

std::string bytes_in(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

// One health check, on a connection of its own: an agent that accepts no more is not healthy.
struct HealthWatch::Check {
  explicit Check(const std::string& socket_path) : stub(connect(socket_path)) {}

  static std::shared_ptr<grpc::Channel> connect(const std::string& socket_path) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        "unix:" + socket_path, grpc::InsecureChannelCredentials(), arguments);
  }

  grpc::GenericStub stub;
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

HealthWatch::HealthWatch(std::vector<Loop> loops,
                         std::string socket_path,
                         std::chrono::microseconds period,
                         Handlers handlers)
    : loops_(std::move(loops)),
      socket_path_(std::move(socket_path)),
      period_(period),
      handlers_(std::move(handlers)),
      thread_([this] { run(); }) {}

HealthWatch::~HealthWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
  // What gRPC's thread still uses must not go before it.
  if (check_) check_->context.TryCancel();
  pulses_->is_rpc_in_flight.wait(true);
}

void HealthWatch::run() {
  ::pthread_setname_np(::pthread_self(), "accel-heartbeat");
  handlers_.sign();
  ask();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period_, [this] { return is_closing_; })) {
    lock.unlock();
    judge();
    lock.lock();
  }
}

void HealthWatch::ask() {
  pulses_->loops = 0;
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    boost::asio::post(loops_[i].loop,
                      [pulses = pulses_, bit = std::uint64_t{1} << i] { pulses->loops |= bit; });
  }
  pulses_->has_rpc = false;
  ask_rpc();
}

// At most one at a time; it has as long as a turn.
void HealthWatch::ask_rpc() {
  if (pulses_->is_rpc_in_flight.exchange(true)) return;
  check_ = std::make_unique<Check>(socket_path_);
  check_->context.set_deadline(std::chrono::system_clock::now() + period_);
  const grpc::Slice nothing("", 0);
  check_->request = grpc::ByteBuffer(&nothing, 1);
  check_->stub.UnaryCall(&check_->context,
                         kCheckMethod,
                         grpc::StubOptions(),
                         &check_->request,
                         &check_->response,
                         [check = check_.get(), pulses = pulses_](const grpc::Status& status) {
                           if (status.ok() && bytes_in(check->response) == kServing)
                             pulses->has_rpc = true;
                           pulses->is_rpc_in_flight = false;
                           pulses->is_rpc_in_flight.notify_all();
                         });
}

void HealthWatch::judge() {
  std::string missing;
  const auto miss = [&](const std::string& what) {
    missing += (missing.empty() ? "" : " and ") + what;
  };
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    if ((pulses_->loops >> i & 1) == 0) miss(loops_[i].name);
  }
  if (!pulses_->has_rpc) miss("its own RPC");
  if (missing.empty()) {
    told_.clear();
    handlers_.sign();
    return ask();
  }
  if (std::exchange(told_, missing) != missing) handlers_.on_missing(missing);
  if (!pulses_->has_rpc) ask_rpc();  // a check that failed may do better
}

}  // namespace accel::agent

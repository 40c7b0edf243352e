#include "runtime/supervisor/owner/owner_door.h"

#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/supervisor/owner/shim_state.h"
#include "runtime/unix_address.h"

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxCandidates = 8;
constexpr std::chrono::seconds kProofLimit{5};

Error door_failure(const std::string& what) {
  return Error(ErrorCode::kShimState, what + ": " + errno_text(errno));
}

// The folder is named by its descriptor: its path may be longer than a socket's name may be, and
// nobody can put another folder in its place.
Result<UniqueFd> listen_in(int folder, const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return door_failure("cannot make a socket");
  const std::string path = "/proc/self/fd/" + std::to_string(folder) + "/" + name;
  const auto address = unix_address(path);
  if (!address)
    return Error(ErrorCode::kShimState, "the name " + name + " is too long for a socket");
  (void)::unlinkat(folder, name.c_str(), 0);
  const mode_t before = ::umask(0177);
  const int bound = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  ::umask(before);
  if (bound != 0 || ::listen(fd.get(), kMaxCandidates) != 0)
    return door_failure("cannot listen on " + name);
  return fd;
}

// Somebody who has connected and not proved anything yet.
struct Candidate {
  Candidate(asio::io_context& context, UniqueFd fd, ucred who)
      : socket(std::move(fd)), stream(context), limit(context), credentials(who) {}

  FrameSocket socket;
  asio::posix::stream_descriptor stream;  // of a duplicate
  asio::steady_timer limit;
  ucred credentials;
};

}  // namespace

bool is_same_secret(const std::string& given, const std::string& expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0 && !expected.empty();
}

class OwnerDoor::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& context, OwnerDoorOptions options, Gate gate, Welcome welcome)
      : context_(context),
        options_(std::move(options)),
        gate_(std::move(gate)),
        welcome_(std::move(welcome)),
        listener_(context) {}

  Result<void> start();
  void close();

 private:
  void wait_for_candidates();
  void accept_all();
  void admit(UniqueFd fd);
  void await_proof(std::uint64_t id, Candidate& candidate);
  void judge(std::uint64_t id);
  [[nodiscard]] Result<void> check(const Adopt& proof) const;

  asio::io_context& context_;
  OwnerDoorOptions options_;
  Gate gate_;
  Welcome welcome_;
  UniqueFd folder_;
  asio::posix::stream_descriptor listener_;
  // Handlers know a candidate by its number and look it up: it may be gone.
  std::map<std::uint64_t, Candidate> candidates_;
  std::uint64_t next_id_ = 1;
};

Result<void> OwnerDoor::Impl::start() {
  auto folder = open_runtime_folder(options_.folder);
  if (!folder) return std::move(folder).error();
  folder_ = *std::move(folder);
  const std::string name = socket_name(options_.job_id);
  auto fd = listen_in(folder_.get(), name);
  if (!fd) return std::move(fd).error();
  boost::system::error_code error;
  listener_.assign(fd->get(), error);
  if (error) return Error(ErrorCode::kShimState, "cannot watch " + name + ": " + error.message());
  (void)fd->release();
  ShimState state = own_state(real_system());
  state.job_id = options_.job_id;
  state.node_id = options_.node_id;
  state.instance = options_.instance;
  state.build = options_.build;
  state.protocol = kProtocolVersion;
  state.socket = name;
  if (auto written = write_shim_state(folder_.get(), state); !written) return written;
  wait_for_candidates();
  return {};
}

void OwnerDoor::Impl::close() {
  boost::system::error_code ignored;
  listener_.close(ignored);
  candidates_.clear();
  if (!folder_) return;
  (void)::unlinkat(folder_.get(), socket_name(options_.job_id).c_str(), 0);
  (void)::unlinkat(folder_.get(), state_file_name(options_.job_id).c_str(), 0);
}

void OwnerDoor::Impl::wait_for_candidates() {
  listener_.async_wait(asio::posix::descriptor_base::wait_read,
                       [weak = weak_from_this()](const boost::system::error_code& error) {
                         const auto self = weak.lock();
                         if (!self || error) return;
                         self->accept_all();
                         self->wait_for_candidates();
                       });
}

void OwnerDoor::Impl::accept_all() {
  for (std::size_t i = 0; i < kMaxCandidates; ++i) {
    UniqueFd fd(
        ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (candidates_.size() < kMaxCandidates) admit(std::move(fd));
  }
}

void OwnerDoor::Impl::admit(UniqueFd fd) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return;
  if (who.uid != ::geteuid() && who.uid != 0) return;
  const int duplicate = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3);
  if (duplicate < 0) return;
  const std::uint64_t id = next_id_++;
  Candidate& candidate = candidates_
                             .emplace(std::piecewise_construct,
                                      std::forward_as_tuple(id),
                                      std::forward_as_tuple(context_, std::move(fd), who))
                             .first->second;
  boost::system::error_code error;
  candidate.stream.assign(duplicate, error);
  if (error) {
    ::close(duplicate);
    candidates_.erase(id);
    return;
  }
  (void)candidate.socket.send(encode(HostEvent(Hello{.build = options_.build, .pid = ::getpid()})));
  candidate.limit.expires_after(kProofLimit);
  candidate.limit.async_wait(
      [weak = weak_from_this(), id](const boost::system::error_code& timer_error) {
        const auto self = weak.lock();
        if (self && !timer_error) self->candidates_.erase(id);
      });
  await_proof(id, candidate);
}

void OwnerDoor::Impl::await_proof(std::uint64_t id, Candidate& candidate) {
  candidate.stream.async_wait(
      asio::posix::descriptor_base::wait_read,
      [weak = weak_from_this(), id](const boost::system::error_code& error) {
        const auto self = weak.lock();
        if (self && !error) self->judge(id);
      });
}

void OwnerDoor::Impl::judge(std::uint64_t id) {
  const auto found = candidates_.find(id);
  if (found == candidates_.end()) return;
  Candidate& candidate = found->second;
  auto received = candidate.socket.receive();
  using Status = FrameSocket::Received::Status;
  if (received && received->status == Status::kNothing) return await_proof(id, candidate);
  if (!received || received->status == Status::kPeerGone) {
    candidates_.erase(found);
    return;
  }
  const auto request = decode_request(received->frame);
  const auto* proof = request ? std::get_if<Adopt>(&*request) : nullptr;
  const auto checked =
      proof == nullptr ? Result<void>(Error(ErrorCode::kProtocol, "the first frame is no adopt"))
                       : check(*proof);
  if (!checked) {
    (void)candidate.socket.send(encode(HostEvent(Refused{checked.error()})));
    candidates_.erase(found);
    return;
  }
  FrameSocket socket = std::move(candidate.socket);
  UniqueFd owner(static_cast<int>(::syscall(SYS_pidfd_open, candidate.credentials.pid, 0)));
  candidates_.erase(found);
  welcome_(std::move(socket), std::move(owner));
}

Result<void> OwnerDoor::Impl::check(const Adopt& proof) const {
  const Hello theirs = {.protocol = proof.protocol, .oldest_protocol = proof.oldest_protocol};
  if (!has_common_protocol(theirs)) {
    return Error(
        ErrorCode::kProtocol,
        "the new owner (build " + proof.build + ") speaks protocol " +
            describe_protocols(proof.oldest_protocol, proof.protocol) + ", the shim (build " +
            options_.build + ") " + describe_protocols(kOldestProtocol, kProtocolVersion),
        "let an accel-agent of a build that speaks both take the job over, or let its hold "
        "end");
  }
  if (!is_same_secret(proof.token, options_.token)) {
    return Error(ErrorCode::kShimRefused, "the new owner does not know the token of the job");
  }
  return gate_();
}

Result<std::unique_ptr<OwnerDoor>> OwnerDoor::open(asio::io_context& context,
                                                   OwnerDoorOptions options,
                                                   Gate gate,
                                                   Welcome welcome) {
  auto impl =
      std::make_shared<Impl>(context, std::move(options), std::move(gate), std::move(welcome));
  if (auto started = impl->start(); !started) return std::move(started).error();
  return std::unique_ptr<OwnerDoor>(new OwnerDoor(std::move(impl)));
}

OwnerDoor::OwnerDoor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
OwnerDoor::~OwnerDoor() {
  impl_->close();
}

}  // namespace accel::supervisor

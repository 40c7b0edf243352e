#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <accel/channel.h>
#include <accel/channel_layout.h>

#include "runtime/channel_frames.h"
#include "runtime/unique_fd.h"

namespace accel {

namespace {

constexpr std::chrono::milliseconds kReplyTimeout{10'000};
constexpr int kLockTries = 1000;

struct ChannelName {
  std::uint32_t version = 0;
  int memory = -1;
  int socket = -1;
};

Error corrupt(std::string what) {
  return {ErrorCode::kChannelCorrupt,
          std::move(what),
          "start the worker with accel-launch directly, or unset ACCEL_CHANNEL in its wrapper"};
}

// The number before `end_mark` (or before the end of the text, when that is 0), taken off the
// front.
template <typename T>
std::optional<T> take_number(std::string_view& text, char end_mark) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || (end_mark == 0 ? at != end : at == end || *at != end_mark)) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(at - text.data()) + (end_mark == 0 ? 0 : 1));
  return number;
}

// "<version>:<memfd>:<socket>". What follows the version belongs to that version.
Result<ChannelName> parse_name(std::string_view text) {
  std::string_view rest = text;
  const auto version = take_number<std::uint32_t>(rest, ':');
  if (version && *version != kChannelVersion) return ChannelName{*version};
  const auto memory = version ? take_number<int>(rest, ':') : std::nullopt;
  const auto socket = memory ? take_number<int>(rest, 0) : std::nullopt;
  if (!socket || *memory < 0 || *socket < 0) {
    return corrupt("ACCEL_CHANNEL is '" + std::string(text) + "', not <version>:<memfd>:<socket>");
  }
  return ChannelName{*version, *memory, *socket};
}

Error other_version(std::uint32_t theirs) {
  return {ErrorCode::kChannelVersion,
          "the launcher speaks version " + std::to_string(theirs) +
              " of the worker channel, this program version " + std::to_string(kChannelVersion)};
}

std::uint64_t coarse_now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// A memfd of that size which nobody can shrink any more: reading it cannot fault.
bool is_sealed_memory(int fd, std::size_t bytes) {
  struct stat status {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  return seals >= 0 && (seals & kNeeded) == kNeeded && ::fstat(fd, &status) == 0 &&
         static_cast<std::size_t>(status.st_size) == bytes;
}

bool is_packet_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof(type);
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

// ---- signals that mean a request ----

// Of the channel whose worker handles preemption, as long as it is mapped.
std::atomic<std::atomic<std::uint32_t>*> preemption_word{nullptr};
static_assert(std::atomic<std::atomic<std::uint32_t>*>::is_always_lock_free);

// A scheduler that signals every process of the job means what the launcher will ask for in a moment. The supervisor,
// our parent, means it as it says: the grace is nearly over.
void take_preemption_signal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  std::atomic<std::uint32_t>* word = preemption_word.load();
  if (word == nullptr || info->si_pid == ::getppid()) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  } else {
    word->fetch_or(static_cast<std::uint32_t>(WorkerRequest::kPreempt));
    ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  errno = error;
}

// What the program handles itself stays so.
void take_preemption_signals() {
  struct sigaction action {};
  action.sa_sigaction = take_preemption_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigfillset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    const bool is_default = (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL;
    if (is_default) ::sigaction(signal, &action, nullptr);
  }
}

void* map_shared(int fd, std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return address == MAP_FAILED ? nullptr : address;
}

// Taken for a few dozen nanoseconds by writers of texts. Gives up rather than wait: a signal
// handler may have interrupted the one who holds it.
class TextLock {
 public:
  explicit TextLock(std::atomic_flag& flag) noexcept : flag_(flag) {
    for (int i = 0; i < kLockTries && !owns_; ++i) {
      owns_ = !flag_.test_and_set(std::memory_order_acquire);
    }
  }
  ~TextLock() {
    if (owns_) flag_.clear(std::memory_order_release);
  }
  TextLock(const TextLock&) = delete;
  TextLock& operator=(const TextLock&) = delete;
  explicit operator bool() const noexcept { return owns_; }

 private:
  std::atomic_flag& flag_;
  bool owns_ = false;
};

struct Reply {
  ReplyFrame frame;
  UniqueFd memory;
};

Error lost(const std::string& why) {
  return {ErrorCode::kPeerLost,
          "the supervisor did not answer on the worker channel: " + why,
          "look whether accel-shim still runs; without it this worker is about to end"};
}

}  // namespace

struct WorkerChannel::State {
  State(ChannelLayout* mapped, UniqueFd connected) : page(mapped), socket(std::move(connected)) {}
  ~State() {
    std::atomic<std::uint32_t>* own = &page->requests.word;
    preemption_word.compare_exchange_strong(own, nullptr);
    ::munmap(page, kChannelBytes);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Result<void> send(const ChannelFrame& frame);
  Result<Reply> receive(std::uint64_t id);
  Result<Reply> ask(ChannelFrame frame);

  ChannelLayout* page;
  UniqueFd socket;
  std::atomic_flag texts = ATOMIC_FLAG_INIT;
  std::mutex turn;  // on the socket
  std::uint64_t next_id = 1;
};

// ---- opening ----

Result<std::optional<WorkerChannel>> WorkerChannel::open(const EnvLookup& lookup) {
  const std::optional<std::string> value = lookup("ACCEL_CHANNEL");
  if (!value) return std::optional<WorkerChannel>();
  const Result<ChannelName> name = parse_name(*value);
  if (!name) return name.error();
  if (name->version != kChannelVersion) return other_version(name->version);
  if (!is_sealed_memory(name->memory, kChannelBytes) || !is_packet_socket(name->socket)) {
    return corrupt("ACCEL_CHANNEL is '" + *value +
                   "', but these descriptors are not a worker channel in this process");
  }
  UniqueFd memory(name->memory);
  UniqueFd socket(name->socket);
  ::fcntl(memory.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  auto* page = static_cast<ChannelLayout*>(map_shared(memory.get(), kChannelBytes));
  if (page == nullptr) {
    return Error(ErrorCode::kOutOfMemory, "cannot map the worker channel: " + errno_text(errno));
  }
  auto state = std::make_unique<State>(page, std::move(socket));
  if (page->header.magic.load() != kChannelMagic) {
    return corrupt("the memory of the worker channel does not begin with its magic number");
  }
  const std::uint32_t version = page->header.version.load();
  if (version != kChannelVersion) return other_version(version);
  return std::optional<WorkerChannel>(WorkerChannel(std::move(state)));
}

WorkerChannel::WorkerChannel(std::unique_ptr<State> state) : state_(std::move(state)) {}
WorkerChannel::WorkerChannel(WorkerChannel&& other) noexcept = default;
WorkerChannel& WorkerChannel::operator=(WorkerChannel&& other) noexcept = default;
WorkerChannel::~WorkerChannel() = default;

// ---- the page ----

void WorkerChannel::heartbeat(const Heartbeat& beat) noexcept {
  write_heartbeat(state_->page->slot, beat, coarse_now_ns());
}

void WorkerChannel::step_times(const StepTimes& times) noexcept {
  write_times(state_->page->times, times);
}

void WorkerChannel::collective(std::uint64_t hash, std::string_view text) noexcept {
  write_call(state_->page->calls, hash, text);
}

void WorkerChannel::set_error(std::string_view text) noexcept {
  if (const TextLock lock(state_->texts); lock) {
    write_error(state_->page->error, text, coarse_now_ns());
  }
}

void WorkerChannel::notice(std::string_view text) noexcept {
  if (const TextLock lock(state_->texts); lock) {
    write_notice(*state_->page, text, coarse_now_ns());
  }
}

void WorkerChannel::declare(WorkerAbility ability) noexcept {
  if (ability == WorkerAbility::kHandlesPreemption) {
    preemption_word.store(&state_->page->requests.word);
    take_preemption_signals();
  }
  state_->page->declared.word.fetch_or(static_cast<std::uint32_t>(ability));
}

void WorkerChannel::mark_saved(std::uint64_t step) noexcept {
  ChannelDeclared& declared = state_->page->declared;
  declared.saved_step.store(step, std::memory_order_relaxed);
  declared.marks.fetch_or(static_cast<std::uint32_t>(WorkerMark::kSaved),
                          std::memory_order_release);
}

WorkerRequests WorkerChannel::requests() const noexcept {
  return WorkerRequests(state_->page->requests.word.load(std::memory_order_acquire));
}

void WorkerChannel::done_with(WorkerRequest request) noexcept {
  if (request == WorkerRequest::kPreempt || request == WorkerRequest::kStop) return;
  state_->page->requests.word.fetch_and(~static_cast<std::uint32_t>(request));
}

WorkerRequests WorkerChannel::wait_for_requests(WorkerRequests seen,
                                                std::chrono::milliseconds timeout) const noexcept {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const WorkerRequests now = requests();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (now.bits() != seen.bits() || left <= left.zero()) return now;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec relative{static_cast<time_t>(seconds.count()),
                            static_cast<long>(std::chrono::nanoseconds(left - seconds).count())};
    // Not FUTEX_PRIVATE: the supervisor wakes us from another process.
    ::syscall(
        SYS_futex, &state_->page->requests.word, FUTEX_WAIT, seen.bits(), &relative, nullptr, 0);
  }
}

// ---- the socket ----

Result<void> WorkerChannel::State::send(const ChannelFrame& frame) {
  const Result<std::string> bytes = encode_channel_frame(frame);
  if (!bytes) return bytes.error();
  while (::send(socket.get(), bytes->data(), bytes->size(), MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return lost(errno_text(errno));
  }
  return {};
}

// Answers to questions that were given up on are thrown away, with their descriptors.
Result<Reply> WorkerChannel::State::receive(std::uint64_t id) {
  const auto deadline = std::chrono::steady_clock::now() + kReplyTimeout;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{socket.get(), POLLIN, 0};
    const int count = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (count == 0) return lost("nothing came within 10 s");
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return lost(errno_text(errno));

    std::array<char, kMaxChannelFrame> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec span{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &span;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return lost(got == 0 ? "it closed the channel" : errno_text(errno));

    Reply reply;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
      reply.memory.reset(fd);
    }
    Result<ChannelFrame> frame =
        decode_channel_frame({bytes.data(), static_cast<std::size_t>(got)});
    if (!frame) return std::move(frame).error();
    auto* body = std::get_if<ReplyFrame>(&frame->body);
    if (body == nullptr) return corrupt("the supervisor sent a frame that is no reply");
    if (frame->id != id) continue;
    reply.frame = std::move(*body);
    return reply;
  }
}

Result<Reply> WorkerChannel::State::ask(ChannelFrame frame) {
  const std::lock_guard lock(turn);
  frame.id = next_id++;
  if (Result<void> sent = send(frame); !sent) return std::move(sent).error();
  Result<Reply> reply = receive(frame.id);
  if (!reply) return reply;
  switch (reply->frame.status) {
    case ChannelStatus::kOk:
      return reply;
    case ChannelStatus::kInvalid:
      return Error(ErrorCode::kInvalidArgument, reply->frame.text);
    case ChannelStatus::kQuota:
      return Error(ErrorCode::kStoreLimit,
                   reply->frame.text,
                   "ask for less shared memory, or start fewer workers on this node");
    case ChannelStatus::kStale:
      return Error(ErrorCode::kCheckpointMismatch,
                   reply->frame.text,
                   "let this process end: the newer generation saves checkpoints of its own");
    case ChannelStatus::kFailed:
      break;
  }
  return Error(ErrorCode::kInternal, reply->frame.text);
}

Result<SharedMemory> WorkerChannel::get_shared(std::string_view name,
                                               std::size_t bytes,
                                               Keep keep) {
  if (!is_shared_name(name) || bytes == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "shared memory '" + std::string(name) + "' of " + std::to_string(bytes) +
                     " bytes: the name must be 1 to 128 of [A-Za-z0-9_.-], the size above 0",
                 "choose another name or size in the call of get_shared");
  }
  Result<Reply> reply = state_->ask({0, GetSharedFrame{bytes, keep, std::string(name)}});
  if (!reply) return std::move(reply).error();
  const int fd = reply->memory.get();
  if (fd < 0 || !is_sealed_memory(fd, bytes)) {
    return corrupt("the supervisor's answer to GET_SHARED carries no memory of that size");
  }
  void* data = map_shared(fd, bytes);
  if (data == nullptr) {
    return Error(ErrorCode::kOutOfMemory,
                 "cannot map " + std::to_string(bytes) + " bytes: " + errno_text(errno));
  }
  return SharedMemory(static_cast<std::byte*>(data), bytes);
}

Result<void> WorkerChannel::drop_shared(std::string_view name) {
  if (Result<Reply> reply = state_->ask({0, DropSharedFrame{std::string(name)}}); !reply)
    return std::move(reply).error();
  return {};
}

Result<std::string> WorkerChannel::commit(std::uint64_t step,
                                          std::string_view path,
                                          std::string_view digest) {
  Result<Reply> reply = state_->ask({0, CommitFrame{step, std::string(path), std::string(digest)}});
  if (!reply) return std::move(reply).error();
  return std::move(reply->frame.text);
}

Result<void> WorkerChannel::report(std::string_view text) {
  const std::lock_guard lock(state_->turn);
  return state_->send({0, ReportFrame{std::string(text)}});
}

Result<void> WorkerChannel::bye() {
  const std::lock_guard lock(state_->turn);
  return state_->send({0, ByeFrame{}});
}

// ---- shared memory ----

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace accel

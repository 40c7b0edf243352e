#include "runtime/supervisor/watch/channel_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <new>
#include <unordered_map>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/channel_frames.h"
#include "runtime/printable.h"

// What keeps a hostile worker from doing harm:
//
//   page         sealed against resizing, so reading it cannot fault; read only by the functions of
//                channel_layout.h, which copy before they check; the header is never read back
//   frames       received into kMaxChannelFrame + 1 bytes: a longer one is seen as such
//   descriptors  received without a control buffer: the kernel drops what was passed before it gets
//                a number here
//   answers      sent with MSG_DONTWAIT; a socket that is full is closed: a worker that asks one
//                question at a time can never fill it
//   flooding     16 frames, then the others have their turn

namespace accel::supervisor {

namespace asio = boost::asio;

namespace {

constexpr int kFramesPerTurn = 16;
constexpr std::size_t kMaxWorkerNotices = 100;  // of a worker in a generation
constexpr int kChannelSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Error channel_failure(const char* call) {
  return {ErrorCode::kSpawnFailed,
          std::string("cannot make a worker channel: ") + call + ": " + errno_text(errno),
          "raise the limit of open files (ulimit -n) or free memory"};
}

// Memory of exactly that size, filled with zeros, sealed against resizing.
UniqueFd make_sealed_memory(const char* name, std::uint64_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kChannelSeals) != 0) {
    return {};
  }
  return fd;
}

std::uint64_t half_of_memory() {
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 2;
}

// Our mapping of a worker's page.
class Page {
 public:
  explicit Page(void* address) : layout_(new (address) ChannelLayout) {}
  ~Page() { ::munmap(layout_, kChannelBytes); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  ChannelLayout* operator->() const { return layout_; }
  ChannelLayout& operator*() const { return *layout_; }

 private:
  ChannelLayout* layout_;
};

struct Shared {
  UniqueFd memory;
  std::uint64_t bytes = 0;
  Keep keep = Keep::kGeneration;
};

struct Channel {
  Channel(asio::io_context& context, void* address) : page(address), socket(context) {}

  Page page;
  asio::posix::stream_descriptor socket;
  int global_rank = 0;
  int generation = 0;
  std::uint64_t serial = 0;  // tells a handler of an older channel of this rank that it is late
  std::uint64_t next_notice = 0;
  std::size_t notices_left = kMaxWorkerNotices;
  bool has_said_bye = false;
};

}  // namespace

class ChannelServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& context, ChannelOptions given)
      : options(std::move(given)), context_(context) {
    if (options.shared_quota_bytes == 0) options.shared_quota_bytes = half_of_memory();
  }

  Result<ChannelEnds> open(int global_rank, int generation);
  void request(Channel& channel, WorkerRequest request);
  void end_generation();

  [[nodiscard]] Channel* find(int global_rank) const {
    const auto found = channels.find(global_rank);
    return found == channels.end() ? nullptr : found->second.get();
  }

  ChannelOptions options;
  std::unordered_map<int, std::unique_ptr<Channel>> channels;
  std::optional<CheckpointCommit> last_commit;
  std::uint64_t shared_bytes = 0;

 private:
  void arm(Channel& channel);
  void on_readable(int global_rank, std::uint64_t serial);
  [[nodiscard]] Result<bool> take_frame(Channel& channel);
  [[nodiscard]] Result<void> obey(Channel& channel, ChannelFrame frame);
  [[nodiscard]] Result<void> get_shared(Channel& channel,
                                        std::uint64_t id,
                                        const GetSharedFrame& frame);
  [[nodiscard]] Result<void> commit(Channel& channel, std::uint64_t id, const CommitFrame& frame);
  [[nodiscard]] Result<void> answer(Channel& channel,
                                    std::uint64_t id,
                                    ReplyFrame reply,
                                    int descriptor = -1);
  // Finds or makes the memory; the text says why not.
  struct SharedAnswer {
    ReplyFrame reply;
    int descriptor = -1;
  };
  [[nodiscard]] SharedAnswer share(const GetSharedFrame& frame);
  void drop(const std::string& name);

  asio::io_context& context_;
  std::map<std::string, Shared, std::less<>> shared_;
  std::uint64_t next_serial_ = 1;
  std::uint64_t num_commits_ = 0;
  int newest_generation_ = 0;  // that a channel was opened for
};

// ---- opening and closing ----

Result<ChannelEnds> ChannelServer::Impl::open(int global_rank, int generation) {
  UniqueFd memory = make_sealed_memory("accel-channel", kChannelBytes);
  if (!memory) return channel_failure("memfd_create");
  void* address =
      ::mmap(nullptr, kChannelBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED) return channel_failure("mmap");
  auto channel = std::make_unique<Channel>(context_, address);
  int pair[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return channel_failure("socketpair");
  }
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  boost::system::error_code error;
  channel->socket.assign(ours.get(), error);
  if (error) return channel_failure("epoll_ctl");
  (void)ours.release();

  ChannelHeader& header = channel->page->header;
  header.version.store(kChannelVersion);
  header.bytes.store(kChannelBytes);
  header.magic.store(kChannelMagic);
  channel->global_rank = global_rank;
  channel->generation = generation;
  newest_generation_ = std::max(newest_generation_, generation);
  channel->serial = next_serial_++;
  arm(*channel);
  channels[global_rank] = std::move(channel);

  std::string value = std::to_string(kChannelVersion) + ":" + std::to_string(memory.get()) + ":" +
                      std::to_string(theirs.get());
  return ChannelEnds{std::move(memory), std::move(theirs), std::move(value)};
}

void ChannelServer::Impl::end_generation() {
  channels.clear();
  std::erase_if(shared_, [&](const auto& entry) {
    if (entry.second.keep == Keep::kJob) return false;
    shared_bytes -= entry.second.bytes;
    return true;
  });
}

void ChannelServer::Impl::request(Channel& channel, WorkerRequest request) {
  auto& word = channel.page->requests.word;
  word.fetch_or(static_cast<std::uint32_t>(request));
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// ---- frames ----

void ChannelServer::Impl::arm(Channel& channel) {
  channel.socket.async_wait(asio::posix::stream_descriptor::wait_read,
                            [weak = weak_from_this(),
                             rank = channel.global_rank,
                             serial = channel.serial](const boost::system::error_code& error) {
                              const std::shared_ptr<Impl> self = weak.lock();
                              if (self && !error) self->on_readable(rank, serial);
                            });
}

void ChannelServer::Impl::on_readable(int global_rank, std::uint64_t serial) {
  for (int i = 0; i < kFramesPerTurn; ++i) {
    // A callback may have closed this channel meanwhile.
    Channel* channel = find(global_rank);
    if (channel == nullptr || channel->serial != serial) return;
    const Result<bool> taken = take_frame(*channel);
    channel = find(global_rank);
    if (channel == nullptr || channel->serial != serial) return;
    if (!taken) {
      boost::system::error_code ignored;
      channel->socket.close(ignored);
      if (options.on_violation) options.on_violation(global_rank, taken.error());
      return;
    }
    if (!*taken) break;
  }
  if (Channel* channel = find(global_rank); channel != nullptr && channel->socket.is_open()) {
    arm(*channel);
  }
}

// Takes one frame. False: none is there now, or the worker closed its end.
// Errors: the worker broke the protocol.
Result<bool> ChannelServer::Impl::take_frame(Channel& channel) {
  std::array<char, kMaxChannelFrame + 1> bytes;
  iovec span{bytes.data(), bytes.size()};
  msghdr message{};  // no control buffer: see above
  message.msg_iov = &span;
  message.msg_iovlen = 1;
  const ssize_t got = ::recvmsg(channel.socket.native_handle(), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  // An empty packet looks like the end of the connection; neither is followed by anything we need.
  if (got <= 0) {
    boost::system::error_code ignored;
    channel.socket.close(ignored);
    return false;
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Error(ErrorCode::kProtocol, "a frame on the worker channel carries descriptors");
  }
  Result<ChannelFrame> frame = decode_channel_frame({bytes.data(), static_cast<std::size_t>(got)});
  if (!frame) return std::move(frame).error();
  if (Result<void> done = obey(channel, *std::move(frame)); !done) return std::move(done).error();
  return true;
}

Result<void> ChannelServer::Impl::obey(Channel& channel, ChannelFrame frame) {
  if (const auto* shared = std::get_if<GetSharedFrame>(&frame.body)) {
    return get_shared(channel, frame.id, *shared);
  }
  if (const auto* dropped = std::get_if<DropSharedFrame>(&frame.body)) {
    drop(dropped->name);
    return answer(channel, frame.id, {});
  }
  if (const auto* committed = std::get_if<CommitFrame>(&frame.body)) {
    return commit(channel, frame.id, *committed);
  }
  if (const auto* report = std::get_if<ReportFrame>(&frame.body)) {
    if (options.on_report) options.on_report(channel.global_rank, printable(report->text));
    return {};
  }
  if (std::holds_alternative<ByeFrame>(frame.body)) {
    channel.has_said_bye = true;
    if (options.on_bye) options.on_bye(channel.global_rank);
    return {};
  }
  return Error(ErrorCode::kProtocol, "a worker sent a reply on its channel");
}

Result<void> ChannelServer::Impl::get_shared(Channel& channel,
                                             std::uint64_t id,
                                             const GetSharedFrame& frame) {
  SharedAnswer found = share(frame);
  return answer(channel, id, std::move(found.reply), found.descriptor);
}

ChannelServer::Impl::SharedAnswer ChannelServer::Impl::share(const GetSharedFrame& frame) {
  const auto refuse = [](ChannelStatus status, std::string why) {
    return SharedAnswer{{status, std::move(why)}, -1};
  };
  if (!is_shared_name(frame.name)) {
    return refuse(ChannelStatus::kInvalid, "a name of shared memory is 1 to 128 of [A-Za-z0-9_.-]");
  }
  if (const auto known = shared_.find(frame.name); known != shared_.end()) {
    if (known->second.bytes != frame.bytes) {
      return refuse(ChannelStatus::kInvalid,
                    "shared memory '" + frame.name + "' has " +
                        std::to_string(known->second.bytes) + " bytes, not " +
                        std::to_string(frame.bytes));
    }
    if (frame.keep == Keep::kJob) known->second.keep = Keep::kJob;
    return {{}, known->second.memory.get()};
  }
  if (frame.bytes == 0) return refuse(ChannelStatus::kInvalid, "shared memory of 0 bytes");
  if (shared_.size() >= options.max_shared ||
      frame.bytes > options.shared_quota_bytes - shared_bytes) {
    return refuse(ChannelStatus::kQuota,
                  "the job has " + std::to_string(shared_.size()) +
                      " pieces of shared memory with " + std::to_string(shared_bytes) +
                      " bytes and may have " + std::to_string(options.max_shared) + " with " +
                      std::to_string(options.shared_quota_bytes));
  }
  UniqueFd memory = make_sealed_memory("accel-shared", frame.bytes);
  if (!memory) {
    return refuse(ChannelStatus::kFailed, "cannot make shared memory: " + errno_text(errno));
  }
  shared_bytes += frame.bytes;
  const int descriptor = memory.get();
  shared_.emplace(frame.name, Shared{std::move(memory), frame.bytes, frame.keep});
  return {{}, descriptor};
}

void ChannelServer::Impl::drop(const std::string& name) {
  const auto known = shared_.find(name);
  if (known == shared_.end()) return;
  shared_bytes -= known->second.bytes;
  shared_.erase(known);
}

Result<void> ChannelServer::Impl::commit(Channel& channel,
                                         std::uint64_t id,
                                         const CommitFrame& frame) {
  if (channel.generation < newest_generation_) {
    return answer(channel,
                  id,
                  {ChannelStatus::kStale,
                   "the checkpoint at step " + std::to_string(frame.step) + " is of generation " +
                       std::to_string(channel.generation) + ", and generation " +
                       std::to_string(newest_generation_) + " has begun"});
  }
  CheckpointCommit made;
  made.global_rank = channel.global_rank;
  made.generation = channel.generation;
  made.step = frame.step;
  made.path = printable(frame.path);
  made.digest = printable(frame.digest);
  made.token = options.job_id + "/" + std::to_string(channel.generation) + "/" +
               std::to_string(++num_commits_);
  if (auto sent = answer(channel, id, {ChannelStatus::kOk, made.token}); !sent) return sent;
  last_commit = made;
  if (options.on_commit) options.on_commit(made);
  return {};
}

Result<void> ChannelServer::Impl::answer(Channel& channel,
                                         std::uint64_t id,
                                         ReplyFrame reply,
                                         int descriptor) {
  const Result<std::string> bytes = encode_channel_frame({id, std::move(reply)});
  if (!bytes) return bytes.error();
  std::string data = *bytes;
  iovec span{data.data(), data.size()};
  msghdr message{};
  message.msg_iov = &span;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  }
  const ssize_t put =
      ::sendmsg(channel.socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put < 0 && errno != EPIPE && errno != ECONNRESET) {
    return Error(ErrorCode::kProtocol, "a worker does not read the answers on its channel");
  }
  return {};
}

// ---- the public face ----

ChannelServer::ChannelServer(asio::io_context& context, ChannelOptions options)
    : impl_(std::make_shared<Impl>(context, std::move(options))) {}

ChannelServer::~ChannelServer() {
  impl_->channels.clear();
}

Result<ChannelEnds> ChannelServer::open(int global_rank, int generation) {
  return impl_->open(global_rank, generation);
}

void ChannelServer::request(int global_rank, WorkerRequest request) {
  if (Channel* channel = impl_->find(global_rank)) impl_->request(*channel, request);
}

void ChannelServer::request_all(WorkerRequest request) {
  for (auto& [rank, channel] : impl_->channels) impl_->request(*channel, request);
}

bool ChannelServer::declares(int global_rank, WorkerAbility ability) const {
  const Channel* channel = impl_->find(global_rank);
  return channel != nullptr &&
         (channel->page->declared.word.load() & static_cast<std::uint32_t>(ability)) != 0;
}

std::optional<std::uint64_t> ChannelServer::saved_step(int global_rank) const {
  const Channel* channel = impl_->find(global_rank);
  if (channel == nullptr) return std::nullopt;
  const ChannelDeclared& declared = channel->page->declared;
  const auto saved = static_cast<std::uint32_t>(WorkerMark::kSaved);
  if ((declared.marks.load(std::memory_order_acquire) & saved) == 0) return std::nullopt;
  return declared.saved_step.load();
}

std::optional<HeartbeatSample> ChannelServer::heartbeat(int global_rank) const {
  const Channel* channel = impl_->find(global_rank);
  return channel == nullptr ? std::nullopt : read_heartbeat(channel->page->slot);
}

std::optional<StepTimes> ChannelServer::step_times(int global_rank) const {
  const Channel* channel = impl_->find(global_rank);
  return channel == nullptr ? std::nullopt : read_times(channel->page->times);
}

std::optional<RankCalls> ChannelServer::calls(int global_rank) const {
  const Channel* channel = impl_->find(global_rank);
  if (channel == nullptr) return std::nullopt;
  std::optional<RankCalls> calls = read_calls(channel->page->calls);
  if (calls) calls->global_rank = global_rank;
  return calls;
}

Result<std::optional<WorkerError>> ChannelServer::last_error(int global_rank) const {
  const Channel* channel = impl_->find(global_rank);
  if (channel == nullptr) return std::optional<WorkerError>();
  return read_error(channel->page->error);
}

std::vector<std::string> ChannelServer::take_notices(int global_rank) {
  Channel* channel = impl_->find(global_rank);
  if (channel == nullptr) return {};
  NoticesRead read = read_notices(*channel->page, channel->next_notice);
  channel->next_notice = read.next;
  if (read.texts.size() >= channel->notices_left) {
    read.texts.resize(channel->notices_left);
    if (!read.texts.empty())
      read.texts.back() = "has said too much: its notices are not read any more in this generation";
  }
  channel->notices_left -= read.texts.size();
  return std::move(read.texts);
}

bool ChannelServer::has_said_bye(int global_rank) const {
  const Channel* channel = impl_->find(global_rank);
  return channel != nullptr && channel->has_said_bye;
}

const std::optional<CheckpointCommit>& ChannelServer::last_commit() const {
  return impl_->last_commit;
}

void ChannelServer::close(int global_rank) {
  impl_->channels.erase(global_rank);
}
void ChannelServer::end_generation() {
  impl_->end_generation();
}
std::uint64_t ChannelServer::shared_bytes() const {
  return impl_->shared_bytes;
}

}  // namespace accel::supervisor

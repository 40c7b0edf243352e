// A frame is {"type": ..., members}. A frame above kMaxFrameBytes is written to a memfd, sealed
// against changes, and announced by {"type": "payload", "size": N} with the descriptor as
// SCM_RIGHTS. The receiver asks fstat for the size and the seals before it reads: an announcement
// is never believed.

#include "runtime/supervisor/frames.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/supervisor/json_fields.h"

namespace accel::supervisor {
namespace {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
// Clang 14 does not deduce aggregates.
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

Json parse_own(const std::string& json) {
  return Json::parse(json);
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// An exit or an outcome inside a frame goes through its own reader; its Error becomes a FieldError.
template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw FieldError(result.error().message());
  return *std::move(result);
}

Json encode_error(const Error& error) {
  Json details = Json::array();
  for (const auto& [label, text] : error.details()) {
    details.push_back(to_field(std::vector<std::string>{label, text}));
  }
  return {{"code", static_cast<int>(error.code())},
          {"message", to_field(error.message())},
          {"remedy", to_field(error.remedy())},
          {"context", to_field(error.context())},
          {"details", std::move(details)}};
}

Error error_from(const Json& json) {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string remedy;
  std::vector<std::string> context;
  std::vector<std::vector<std::string>> details;
  read_member(json, "code", [&](const Json& number) {
    from_enum_field(number, code, static_cast<ErrorCode>(static_cast<int>(ErrorCode::kCount_) - 1));
  });
  read_member(json, "message", message);
  read_member(json, "remedy", remedy);
  read_member(json, "context", context);
  read_member(json, "details", details);
  Error error(code, std::move(message), std::move(remedy));
  for (std::string& step : context) error.while_doing(std::move(step));
  for (const auto& detail : details) {
    if (detail.size() != 2) throw FieldError("a detail is not a label and a text");
    error.with_detail(detail[0], detail[1]);
  }
  return error;
}

HostEvent event_from(const Json& json) {
  std::string type;
  read_member(json, "type", type);
  if (type == "hello") {
    Hello hello;
    read_member(json, "protocol", hello.protocol);
    read_member(json, "build", hello.build);
    read_member(json, "pid", hello.pid);
    return hello;
  }
  if (type == "refused") {
    Refused refused;
    read_member(json, "error", [&](const Json& error) { refused.error = error_from(error); });
    return refused;
  }
  if (type == "generation_started") {
    GenerationStarted started;
    read_member(json, "generation", started.generation);
    read_member(json, "pids", started.pids);
    read_member(json, "store_port", started.store_port);
    return started;
  }
  if (type == "worker_exited") {
    WorkerExit exit;
    read_member(
        json, "exit", [&](const Json& text) { exit = unwrap(worker_exit_from_json(text.dump())); });
    return exit;
  }
  if (type == "restarting") {
    Restarting restarting;
    read_member(json, "next_generation", restarting.next_generation);
    read_member(json, "delay", restarting.delay);
    read_member(json, "because", [&](const Json& text) {
      restarting.because = unwrap(worker_exit_from_json(text.dump()));
    });
    return restarting;
  }
  if (type == "notice") {
    Notice notice;
    read_member(json, "text", notice.text);
    return notice;
  }
  if (type == "outcome") {
    JobOutcome outcome;
    read_member(json, "outcome", [&](const Json& text) {
      outcome = unwrap(job_outcome_from_json(text.dump()));
    });
    return outcome;
  }
  throw FieldError("unknown type '" + type + "'");
}

HostRequest request_from(const Json& json) {
  std::string type;
  read_member(json, "type", type);
  if (type == "stop") {
    Stop stop;
    read_member(
        json, "mode", [&](const Json& mode) { from_enum_field(mode, stop.mode, StopMode::kKill); });
    read_member(json, "signal", stop.signal);
    read_member(json, "is_delivered", stop.is_delivered);
    return stop;
  }
  if (type == "suspend") return Suspend{};
  if (type == "resume") return Resume{};
  if (type == "dump_stacks") return DumpStacks{};
  if (type == "window_size") {
    WindowSize size;
    read_member(json, "rows", size.rows);
    read_member(json, "columns", size.columns);
    return size;
  }
  throw FieldError("unknown type '" + type + "'");
}

// Writes `payload` into a sealed memfd.
UniqueFd make_payload(const std::string& payload) {
  UniqueFd fd(::memfd_create("accel-frame", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::size_t written = 0;
  while (fd && written < payload.size()) {
    const ssize_t put = ::write(fd.get(), payload.data() + written, payload.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return UniqueFd();
    written += static_cast<std::size_t>(put);
  }
  if (!fd || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return UniqueFd();
  return fd;
}

Error protocol_error(std::string what) {
  return Error(ErrorCode::kProtocol, std::move(what));
}

Result<std::string> read_payload(const UniqueFd& fd, std::size_t announced) {
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return protocol_error("a frame lacks its payload");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (seals < 0 || (seals & kSeals) != kSeals || size != announced || size > kMaxPayloadBytes) {
    return protocol_error("a payload is not as it was announced");
  }
  std::string payload(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(fd.get(), payload.data() + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return protocol_error("a payload cannot be read");
    done += static_cast<std::size_t>(got);
  }
  return payload;
}

FrameSocket::SendStatus send_packet(int socket, std::string_view packet, int attached_fd) {
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (attached_fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &attached_fd, sizeof attached_fd);
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return FrameSocket::SendStatus::kSent;
    }
    if (errno == EINTR) continue;
    const bool is_full = errno == EAGAIN || errno == ENOBUFS;
    return is_full ? FrameSocket::SendStatus::kFull : FrameSocket::SendStatus::kPeerGone;
  }
}

// Takes the descriptors of `message` over; keeps the first, closes the others.
UniqueFd take_descriptors(msghdr& message) {
  UniqueFd first;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      UniqueFd taken(fd);
      if (!first) first = std::move(taken);
    }
  }
  return first;
}

// The size that `frame` announces, when it announces a payload.
std::optional<std::size_t> announced_payload(const std::string& frame) {
  const Json json = Json::parse(frame, nullptr, false);
  if (!json.is_object() || json.value("type", Json()) != "payload") return std::nullopt;
  const auto size = json.find("size");
  if (size == json.end() || !size->is_number_unsigned()) return 0;
  return size->get<std::size_t>();
}

}  // namespace

std::string encode(const HostEvent& event) {
  const Json json =
      std::visit(Overloaded{
                     [](const Hello& hello) -> Json {
                       return {{"type", "hello"},
                               {"protocol", hello.protocol},
                               {"build", to_field(hello.build)},
                               {"pid", hello.pid}};
                     },
                     [](const Refused& refused) -> Json {
                       return {{"type", "refused"}, {"error", encode_error(refused.error)}};
                     },
                     [](const GenerationStarted& started) -> Json {
                       return {{"type", "generation_started"},
                               {"generation", started.generation},
                               {"pids", to_field(started.pids)},
                               {"store_port", started.store_port}};
                     },
                     [](const WorkerExit& exit) -> Json {
                       return {{"type", "worker_exited"}, {"exit", parse_own(to_json(exit))}};
                     },
                     [](const Restarting& restarting) -> Json {
                       return {{"type", "restarting"},
                               {"next_generation", restarting.next_generation},
                               {"delay", restarting.delay.count()},
                               {"because", parse_own(to_json(restarting.because))}};
                     },
                     [](const Notice& notice) -> Json {
                       return {{"type", "notice"}, {"text", to_field(notice.text)}};
                     },
                     [](const JobOutcome& outcome) -> Json {
                       return {{"type", "outcome"}, {"outcome", parse_own(to_json(outcome))}};
                     },
                 },
                 event);
  return json.dump();
}

std::string encode(const HostRequest& request) {
  const Json json = std::visit(
      Overloaded{
          [](const Stop& stop) -> Json {
            return {{"type", "stop"},
                    {"mode", static_cast<int>(stop.mode)},
                    {"signal", stop.signal},
                    {"is_delivered", stop.is_delivered}};
          },
          [](const Suspend&) -> Json {
            return {{"type", "suspend"}};
          },
          [](const Resume&) -> Json {
            return {{"type", "resume"}};
          },
          [](const DumpStacks&) -> Json {
            return {{"type", "dump_stacks"}};
          },
          [](const WindowSize& size) -> Json {
            return {{"type", "window_size"}, {"rows", size.rows}, {"columns", size.columns}};
          },
      },
      request);
  return json.dump();
}

Result<HostEvent> decode_event(std::string_view frame) {
  return decode_json(frame, "a frame of the shim", event_from);
}

Result<HostRequest> decode_request(std::string_view frame) {
  return decode_json(frame, "a frame of the owner", request_from);
}

Result<std::pair<FrameSocket, FrameSocket>> FrameSocket::make_pair() {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return Error(ErrorCode::kSpawnFailed, "cannot make a socket pair: " + errno_text(errno));
  }
  return std::pair(FrameSocket(UniqueFd(fds[0])), FrameSocket(UniqueFd(fds[1])));
}

FrameSocket::SendStatus FrameSocket::send(const std::string& frame) {
  if (frame.size() <= kMaxFrameBytes) return send_packet(fd_.get(), frame, -1);
  const UniqueFd payload = make_payload(frame);
  if (!payload) return SendStatus::kFull;  // no memory now; the caller tries again
  const Json announcement = {{"type", "payload"}, {"size", frame.size()}};
  return send_packet(fd_.get(), announcement.dump(), payload.get());
}

Result<FrameSocket::Received> FrameSocket::receive() {
  std::string packet(kMaxFrameBytes, '\0');
  iovec part = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  bool was_reset = false;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // A peer that closes before it has read everything leaves ECONNRESET, once and ahead of the frames
    // that it had sent: its last word must not be lost to a request that came too late for it.
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(was_reset, true))));
  using Status = Received::Status;
  if (got < 0 && errno == EAGAIN) return Received{Status::kNothing, {}};
  if (got <= 0) return Received{Status::kPeerGone, {}};
  const UniqueFd attached = take_descriptors(message);
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return protocol_error("a frame is too big");
  packet.resize(static_cast<std::size_t>(got));
  if (!attached) return Received{Status::kFrame, std::move(packet)};
  const auto announced = announced_payload(packet);
  if (!announced) return protocol_error("a frame carries a descriptor that it does not announce");
  auto payload = read_payload(attached, *announced);
  if (!payload) return std::move(payload).error();
  return Received{Status::kFrame, *std::move(payload)};
}

}  // namespace accel::supervisor

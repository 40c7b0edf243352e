#include "runtime/supervisor/kernel/tcp_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/system.h"

namespace accel::supervisor {

namespace {

namespace ip = boost::asio::ip;

constexpr std::size_t kMaxTableBytes = 32u << 20;
constexpr unsigned kTcpListen = 10;  // TCP_LISTEN of the kernel's tcp_states.h

// ---- the text of /proc/net/tcp ----

template <typename T>
std::optional<T> parse_digits(std::string_view text, int base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "0100007F" or 32 digits: 32-bit words as this machine stores them, so their bytes are in the
// order of the wire.
std::optional<ip::address> parse_address(std::string_view hex) {
  std::array<std::uint32_t, 4> words{};
  if (hex.size() != 8 && hex.size() != 32) return std::nullopt;
  for (std::size_t i = 0; i * 8 < hex.size(); ++i) {
    const auto word = parse_digits<std::uint32_t>(hex.substr(i * 8, 8), 16);
    if (!word) return std::nullopt;
    words[i] = *word;
  }
  if (hex.size() == 8) {
    ip::address_v4::bytes_type bytes;
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return ip::address_v4(bytes);
  }
  ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), words.data(), bytes.size());
  const ip::address_v6 address(bytes);
  if (address.is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, address);
  return address;
}

std::optional<TcpEndpoint> parse_endpoint(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto address = parse_address(text.substr(0, colon));
  const auto port = parse_digits<std::uint16_t>(text.substr(colon + 1), 16);
  if (!address || !port) return std::nullopt;
  return TcpEndpoint(*address, *port);
}

std::vector<std::string_view> split_at_spaces(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return words;
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...
std::optional<TcpEntry> parse_entry(std::string_view line) {
  const std::vector<std::string_view> words = split_at_spaces(line);
  if (words.size() < 10) return std::nullopt;
  const auto local = parse_endpoint(words[1]);
  const auto remote = parse_endpoint(words[2]);
  const auto state = parse_digits<unsigned>(words[3], 16);
  const auto uid = parse_digits<uid_t>(words[7], 10);
  const auto inode = parse_digits<std::uint64_t>(words[9], 10);
  if (!local || !remote || !state || !uid || !inode) return std::nullopt;
  return TcpEntry{*local, *remote, *state == kTcpListen, *uid, *inode};
}

std::vector<TcpEntry> read_tcp_tables() {
  std::vector<TcpEntry> entries;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const Result<std::string> text = real_system().read_file(path, kMaxTableBytes);
    if (!text) continue;
    const std::vector<TcpEntry> more = parse_tcp_table(*text);
    entries.insert(entries.end(), more.begin(), more.end());
  }
  return entries;
}

// ---- sock_diag ----

struct DiagQuestion {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

void put_address(const ip::address& address, __be32 (&words)[4]) {
  std::memset(words, 0, sizeof(words));
  if (address.is_v4()) {
    const auto bytes = address.to_v4().to_bytes();
    std::memcpy(words, bytes.data(), bytes.size());
  } else {
    const auto bytes = address.to_v6().to_bytes();
    std::memcpy(words, bytes.data(), bytes.size());
  }
}

DiagQuestion question_about(const TcpEndpoint& local, const TcpEndpoint& remote) {
  DiagQuestion question{};
  question.header.nlmsg_len = sizeof(question);
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;  // no NLM_F_DUMP: this very socket, by hash
  inet_diag_req_v2& request = question.request;
  request.sdiag_family = local.address().is_v4() ? AF_INET : AF_INET6;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0u;
  request.id.idiag_sport = htons(local.port());
  request.id.idiag_dport = htons(remote.port());
  put_address(local.address(), request.id.idiag_src);
  put_address(remote.address(), request.id.idiag_dst);
  request.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

// ---- the holder of a port ----

bool holds_socket(pid_t pid, const std::string& link_text) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::directory_iterator files("/proc/" + std::to_string(pid) + "/fd", error);
  for (; !error && files != fs::directory_iterator(); files.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(files->path(), unreadable) == link_text) return true;
  }
  return false;
}

std::string command_of(pid_t pid) {
  Result<std::string> text =
      real_system().read_file("/proc/" + std::to_string(pid) + "/cmdline", 4096);
  if (!text) return {};
  while (!text->empty() && text->back() == '\0') text->pop_back();
  std::replace(text->begin(), text->end(), '\0', ' ');
  constexpr std::size_t kShown = 120;
  if (text->size() > kShown) text->replace(kShown, std::string::npos, "...");
  return *text;
}

}  // namespace

std::vector<TcpEntry> parse_tcp_table(std::string_view text) {
  std::vector<TcpEntry> entries;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (const auto entry = parse_entry(text.substr(0, end))) entries.push_back(*entry);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return entries;
}

TcpOwners::TcpOwners()
    : netlink_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG)) {}

std::optional<uid_t> TcpOwners::owner_of(const TcpEndpoint& local, const TcpEndpoint& remote) {
  uid_t uid = 0;
  switch (ask_kernel(local, remote, uid)) {
    case Answer::kFound:
      return uid;
    case Answer::kAbsent:
      return std::nullopt;
    case Answer::kUnknown:
      break;
  }
  for (const TcpEntry& entry : read_tcp_tables()) {
    if (entry.local == local && entry.remote == remote && entry.inode != 0) return entry.uid;
  }
  return std::nullopt;
}

TcpOwners::Answer TcpOwners::ask_kernel(const TcpEndpoint& local,
                                        const TcpEndpoint& remote,
                                        uid_t& uid) {
  if (!netlink_) return Answer::kUnknown;
  const DiagQuestion question = question_about(local, remote);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  const auto* address = reinterpret_cast<const sockaddr*>(&kernel);
  if (::sendto(netlink_.get(), &question, sizeof(question), 0, address, sizeof(kernel)) < 0) {
    return Answer::kUnknown;
  }
  // The kernel answers within sendto(); nothing is waited for here.
  alignas(nlmsghdr) std::array<char, 1024> answer;
  const ssize_t got = ::recv(netlink_.get(), answer.data(), answer.size(), 0);
  nlmsghdr header{};
  if (got < static_cast<ssize_t>(sizeof(header))) return Answer::kUnknown;
  std::memcpy(&header, answer.data(), sizeof(header));
  if (header.nlmsg_type == NLMSG_ERROR) {
    nlmsgerr error{};
    std::memcpy(&error, answer.data() + NLMSG_HDRLEN, sizeof(error));
    return error.error == -ENOENT ? Answer::kAbsent : Answer::kUnknown;
  }
  inet_diag_msg message{};
  if (got < static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(message))) return Answer::kUnknown;
  std::memcpy(&message, answer.data() + NLMSG_HDRLEN, sizeof(message));
  // A socket without an inode belongs to no process any more, and says uid 0.
  if (message.idiag_inode == 0) return Answer::kAbsent;
  uid = message.idiag_uid;
  return Answer::kFound;
}

std::string PortHolder::describe() const {
  if (pid == 0) return "a process of uid " + std::to_string(uid);
  std::string line = command;  // of `python -c` it may have many
  std::replace(line.begin(), line.end(), '\n', ' ');
  return "process " + std::to_string(pid) + (line.empty() ? "" : " (" + line + ")");
}

std::optional<PortHolder> find_port_holder(std::uint16_t port) {
  for (const TcpEntry& entry : read_tcp_tables()) {
    if (!entry.is_listening || entry.local.port() != port) continue;
    const std::string link_text = "socket:[" + std::to_string(entry.inode) + "]";
    for (const pid_t pid : real_system().process_ids()) {
      if (holds_socket(pid, link_text)) return PortHolder{pid, command_of(pid), entry.uid};
    }
    return PortHolder{0, {}, entry.uid};
  }
  return std::nullopt;
}

}  // namespace accel::supervisor

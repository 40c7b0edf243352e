#include "tests/support/rank_server.h"

#include <csignal>
#include <cstdlib>
#include <cstring>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel::test {
namespace {

constexpr std::size_t kMaxRequest = 128 * 1024;

int g_server = -1;  // the test process's end of the socket

// What a rank is to be, in one message: arguments and variables, each with a zero behind it, and an empty text between.
struct Request {
  std::vector<std::string> arguments;
  std::vector<std::string> env;
  int output = -1;
};

union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

bool send_request(int socket, const Request& request) {
  std::string text;
  for (const std::string& argument : request.arguments) text += argument + '\0';
  text += '\0';
  for (const std::string& variable : request.env) text += variable + '\0';
  if (text.size() > kMaxRequest) return false;
  iovec content{text.data(), text.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &request.output, sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// std::nullopt: the test process has ended.
std::optional<Request> receive_request(int socket) {
  std::string text(kMaxRequest, '\0');
  iovec content{text.data(), text.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t size = ::recvmsg(socket, &message, 0);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (size <= 0 || header == nullptr) return std::nullopt;
  Request request;
  std::memcpy(&request.output, CMSG_DATA(header), sizeof(int));
  std::vector<std::string>* list = &request.arguments;
  for (std::size_t begin = 0; begin < static_cast<std::size_t>(size);) {
    const std::string item = text.c_str() + begin;
    begin += item.size() + 1;
    if (item.empty()) {
      list = &request.env;
    } else {
      list->push_back(item);
    }
  }
  return request;
}

// In the rank: waits for its parent to be the test process, which it dies with, and takes what it is to have.
void become_rank(const Request& request, pid_t test_process, int socket) {
  while (::getppid() != test_process) {
    if (::getppid() == 1) ::_exit(127);  // the test process has ended
    ::sched_yield();
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != test_process) ::_exit(127);
  ::dup2(request.output, STDOUT_FILENO);
  ::dup2(request.output, STDERR_FILENO);
  ::close(request.output);
  ::clearenv();
  for (const std::string& variable : request.env) {
    const auto equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
  const pid_t own = ::getpid();
  (void)!::send(socket, &own, sizeof own, MSG_NOSIGNAL);
  ::close(socket);
}

// Returns in ranks alone.
Request serve(int socket, pid_t test_process) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (std::optional<Request> request = receive_request(socket)) {
    const pid_t between = ::fork();
    if (between == 0) {
      if (::fork() != 0) ::_exit(0);
      become_rank(*request, test_process, socket);
      return *std::move(request);
    }
    ::close(request->output);
    ::waitpid(between, nullptr, 0);
  }
  ::_exit(0);
}

}  // namespace

void begin_rank_server(int& argc, char**& argv) {
  const pid_t test_process = ::getpid();
  int ends[2];
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
      ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return;
  const pid_t server = ::fork();
  if (server != 0) {
    ::close(ends[1]);
    g_server = ends[0];
    return;
  }
  ::close(ends[0]);
  // Until the end of the process: main() works on them.
  static std::vector<std::string> arguments = serve(ends[1], test_process).arguments;
  static std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  argc = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  argv = pointers.data();
}

std::optional<pid_t> fork_rank(const std::vector<std::string>& arguments,
                               const std::vector<std::string>& env,
                               int output) {
  if (g_server < 0 || !send_request(g_server, {arguments, env, output})) return std::nullopt;
  pid_t rank = -1;
  if (::recv(g_server, &rank, sizeof rank, 0) != sizeof rank) return std::nullopt;
  return rank;
}

}  // namespace accel::test

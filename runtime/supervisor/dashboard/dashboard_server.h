// DashboardServer: one page that shows jobs while they run, the stream of events that feeds it, and what operators do from it.
//
//   request                    token   answer
//   GET /, /dashboard.{css,js}   no    the page: files of this program, the same for everybody
//   GET /api/state               yes   the state now, JSON (dashboard_state.h)
//   GET /api/events              yes   server-sent events: a state each, at once and every kEvery
//   GET /api/log?job=&rank=&...  yes   the end of a rank's output, JSON: {"text", "offset", "size", "notice"}
//   GET /api/curves?job=         yes   what the job's trackers have logged, JSON (dashboard_curves.h)
//   GET /api/offers              yes   what this token may do, JSON: {"actions": ["stop", ...]}
//   POST /api/stop?job=[&kill=1] operator's   JSON: {"is_done", "text"}; so do these. A job that is stopping needs the kill=1
//   POST /api/drain              operator's
//   POST /api/stacks?job=&rank=  operator's
//
// There are two tokens: a viewer's reads, an operator's acts too. An action has the page's own Origin, which a browser sends with
// each POST and no other page can: one without it is refused. What is to be done is asked of whoever serves the jobs.
//
// The token is in `Authorization: Bearer`, which no browser sends by itself: a page of another site has nothing to ride on, and
// there is no cookie that a server on another port could read. It reaches the page in the fragment of the address, which is sent
// to nobody. Besides, a Host that is a name other than localhost is refused (DNS rebinding), and an Origin other than the Host's.
// What is refused is counted.
//
// There is no TLS: whoever configures it allows addresses beyond loopback only where that was said.
//
// Threads:  everything on the loop.
// Cost:     while a stream is open a look at the jobs every kEvery; else nothing.
// Source:   docs/guides/dashboard.md, docs/admin/security.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/supervisor/dashboard/dashboard_state.h"
#include "runtime/supervisor/http/http_server.h"
#include "runtime/supervisor/logs/log_layout.h"

namespace accel::supervisor {

// Whose output is wanted.
struct LogQuestion {
  std::string job;  // uuid where there is one, else id
  int rank = 0;
  Stream stream = Stream::kOut;
  std::uint64_t bytes = 0;  // at most so many, the last ones
};
struct LogTail {
  std::string text;          // printable()
  std::uint64_t offset = 0;  // of its first byte in the file
  std::uint64_t size = 0;    // of the file
  std::string notice;        // instead of text: why there is none
};

enum class DashboardDeed {
  kStop,    // as `accel stop JOB`, once: with `kill` as `accel stop --kill JOB`
  kDrain,   // as `accel drain` of the node that serves the page
  kStacks,  // as `accel diagnose JOB`
};
struct DashboardAction {
  DashboardDeed deed = DashboardDeed::kStop;
  std::string job;    // of kStop and kStacks: its uuid where there is one, else its id
  int rank = -1;      // of kStacks
  bool kill = false;  // of kStop: SIGKILL now
  std::string from;   // the caller's address, for whoever records it
};
struct DashboardOutcome {
  bool is_done = true;
  std::string text;  // what was done, or why not
};

class DashboardServer {
 public:
  static constexpr int kMaxConnections = 64;
  static constexpr std::size_t kLeastToken = 32;
  static constexpr std::uint64_t kMostLog = 256 * 1024;  // bytes of an answer
  static constexpr std::chrono::milliseconds kEvery{500};

  struct Handlers {
    // Gives the state to `done`, now or within a second. Its `refusals` are filled here.
    std::function<void(std::function<void(DashboardState)> done)> collect;
    std::function<void(const LogQuestion&, std::function<void(LogTail)> done)> read_log;
    // Gives to_json() of DashboardCurves; it may be large, so it is not made on the loop. `job`: as in LogQuestion.
    std::function<void(const std::string& job, std::function<void(std::string json)> done)>
        read_curves = {};                   // empty: nobody knows of any
    std::vector<DashboardDeed> deeds = {};  // that act() knows
    std::function<void(const DashboardAction&, std::function<void(DashboardOutcome)> done)> act =
        {};  // Requires: done() is called once
  };
  struct Tokens {
    std::string viewers;
    std::string operators;
  };
  // Errors  kFileIo. Requires: two different tokens of kLeastToken characters or more.
  [[nodiscard]] static Result<std::unique_ptr<DashboardServer>> listen(
      boost::asio::io_context& loop,
      const TcpEndpoint& endpoint,
      Tokens tokens,
      Handlers handlers,
      std::chrono::milliseconds patience = HttpServer::kPatience);
  // Streams end; calls no handler any more.
  ~DashboardServer();
  DashboardServer(const DashboardServer&) = delete;
  DashboardServer& operator=(const DashboardServer&) = delete;

  [[nodiscard]] int port() const;
  // What to open in a browser; the viewers' token is in it, or that of operators.
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::string operators_address() const;
  [[nodiscard]] const DashboardRefusals& refusals() const;
  // A last state to all streams, which end then.
  void end();
  [[nodiscard]] bool has_streams() const;

 private:
  struct Core;
  DashboardServer(std::shared_ptr<Core> core, std::unique_ptr<HttpServer> server);
  [[nodiscard]] std::string address_of(const std::string& token) const;

  std::shared_ptr<Core> core_;  // also of looks that are under way
  std::unique_ptr<HttpServer> server_;
};

// Pure. Whether a request with this Host may be meant for this server: a numeric address or localhost, with any port.
[[nodiscard]] bool is_own_host(std::string_view host);
// Pure. Whether the page that asks is one of this server: no Origin, or that of the Host.
[[nodiscard]] bool is_own_origin(std::string_view origin, std::string_view host);
// Pure. "stop", "drain", "stacks": as in the path.
[[nodiscard]] std::string_view name_of(DashboardDeed deed);
// Pure. The value of `key` in "a=1&b=2", %-decoded; empty: it is not there, or no such text.
[[nodiscard]] std::string query_value(std::string_view query, std::string_view key);

// The last bytes of an open file as LogTail: whole lines, where there is one.
[[nodiscard]] LogTail log_tail_of(int file, std::uint64_t most);
// The same of a file whose folders belong to the process's own user.
[[nodiscard]] LogTail read_log_tail(const std::string& path, std::uint64_t most);

}  // namespace accel::supervisor

// node_owner: owns one shim on behalf of a script, frame by frame.
//
//   node_owner adopt STATE_FILE TOKEN    takes over one that holds
//   node_owner start JOB.json            starts a shim; members that the file lacks have their defaults
//
// Each line of stdin is a request, each line "event ..." of stdout an event, both as the JSON of
// runtime/supervisor/protocol/frames.h. Ends when stdin does, or after the last event (with 0) or an error
// (with 1, the error on stderr).

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

#include "runtime/supervisor/owner/worker_host.h"

namespace {

using namespace accel;
using namespace accel::supervisor;

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.render("node_owner").c_str());
  return 1;
}

Result<std::unique_ptr<WorkerHost>> open_host(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "start") {
    std::ifstream file(argv[2]);
    auto json = nlohmann::json::parse(to_json(JobSpec()));
    json.merge_patch(nlohmann::json::parse(file));
    auto spec = job_spec_from_json(json.dump());
    if (!spec) return std::move(spec).error();
    return start_shim(*spec);
  }
  if (verb == "adopt" && argc > 3) return adopt_shim(argv[2], argv[3]);
  return Error(ErrorCode::kInvalidArgument,
               "usage: node_owner start JOB.json | adopt STATE_FILE TOKEN");
}

// Sends the whole lines of `text`, and leaves the rest there.
Result<void> send_lines(WorkerHost& host, std::string& text) {
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    const auto request = decode_request(std::string_view(text).substr(0, end));
    if (!request) return request.error();
    host.request(*request);
    text.erase(0, end + 1);
  }
  return {};
}

int serve(WorkerHost& host) {
  std::string input;
  while (true) {
    auto event = host.next_event();
    if (!event) return fail(event.error());
    if (*event) {
      std::cout << "event " << encode(**event) << std::endl;
      if (std::holds_alternative<JobOutcome>(**event)) return 0;
      continue;
    }
    pollfd fds[] = {{host.event_fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (::poll(fds, 2, -1) <= 0 || fds[1].revents == 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got <= 0) return 0;
    input.append(buffer, static_cast<std::size_t>(got));
    if (auto sent = send_lines(host, input); !sent) return fail(sent.error());
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto host = open_host(argc, argv);
  return host ? serve(**host) : fail(host.error());
}

// BridgeProcess: the Python process in which the SDKs of trackers run, one for all trackers of this process.
//
//   this process --socket: "open JOURNAL", "wake"--> tracker_bridge.py --> SDKs
//                <---- lines of JSON: started, done, error, notice ----
//
// The journals are the queue; the socket only wakes. So nothing waits for an SDK, and what the process had not done when it died is
// done by the next one. It is started anew up to kMostRestarts times. It reads the end of the socket when this process ends,
// however that happens, and has ended itself within 10 s.
//
// Threads:  the writing thread; the constructor and available_sdks() any.
// Errors    kScriptMissing, kScriptNotExecutable: no Python.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::tracking {

inline constexpr int kMostRestarts = 3;

class BridgeProcess {
 public:
  explicit BridgeProcess(std::string python) : python_(std::move(python)) {}
  ~BridgeProcess();  // ends it
  BridgeProcess(const BridgeProcess&) = delete;
  BridgeProcess& operator=(const BridgeProcess&) = delete;

  // What was heard of a journal since the last call.
  struct News {
    bool is_done = false;
    std::string error;  // the SDK, or the process, gave up
    std::vector<std::string> notices;
  };

  // Starts the process when there is none.
  void serve(const std::string& journal);
  // Journals have grown.
  void wake();
  // Reads what the process said.
  [[nodiscard]] News news_of(const std::string& journal);
  // The journal is done with. After the last one the process ends, and is waited for.
  void leave(const std::string& journal);

 private:
  [[nodiscard]] bool start();
  void send(const std::string& line);
  void receive();
  void take(const std::string& line);
  void note_death();
  // Waits up to `seconds`, then kills. The text of its exit status.
  std::string reap(int seconds);
  void fail_all(const std::string& error);

  std::string python_;
  UniqueFd socket_;
  pid_t pid_ = -1;
  int num_deaths_ = 0;
  std::string received_;              // up to the end of a line
  std::map<std::string, News> news_;  // of the journals that are served
};

// The SDKs that this Python can import, by the names of LoggerType.
[[nodiscard]] Result<std::vector<std::string>> available_sdks(const std::string& python);

}  // namespace accel::tracking

// Leftovers: what would stay behind of a file that is not finished, its hidden file and the folders made for it.
//
// While one lives, a signal that ends the program (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ) removes them first. A signal that is
// ignored, as by nohup, or has a handler already is left as it is. Folders go only when they are empty.
//
// Threads:  for programs of one thread.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

class Leftovers {
 public:
  // folders  the innermost first.
  Leftovers(std::string file, std::vector<std::string> folders);
  // Removes nothing.
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // Does nothing but system calls: a handler of signals may call it.
  void remove() const noexcept;

 private:
  static void end_without_leftovers(int signal);
  static void watch_signals();
  static void leave_signals();

  static Leftovers* newest_;

  const std::string file_;
  const std::vector<std::string> folders_;
  Leftovers* older_;
};

}  // namespace accel::launcher

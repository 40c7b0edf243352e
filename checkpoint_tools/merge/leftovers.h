// Leftovers: what would stay behind of a file that is not finished, its hidden file and the folders made for it.
//
// In a program that calls remove_on_signals(), a signal that ends it (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ) removes them first,
// while one lives. A signal that is ignored, as by nohup, or has a handler already is left as it is. Folders go only when they are
// empty.
//
// Threads:  one at a time for each; remove_on_signals() is for programs of one thread.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

class Leftovers {
 public:
  // folders  the innermost first.
  Leftovers(std::string file, std::vector<std::string> folders);
  // From now on those that are made are removed by signals. Changes the handlers of this process.
  static void remove_on_signals() noexcept { are_watched_ = true; }
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
  static bool are_watched_;

  const std::string file_;
  const std::vector<std::string> folders_;
  const bool is_watched_;
  Leftovers* older_;
};

}  // namespace accel::launcher

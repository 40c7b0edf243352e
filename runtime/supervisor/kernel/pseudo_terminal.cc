#include "runtime/supervisor/kernel/pseudo_terminal.h"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

Error failure(const char* step) {
  return Error(ErrorCode::kSpawnFailed,
               std::string("no pseudo terminal for rank 0: ") + step + ": " + errno_text(errno),
               "start again with --no_pty");
}

}  // namespace

Result<PseudoTerminal> open_pseudo_terminal(WindowSize size) {
  PseudoTerminal pty;
  pty.master.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!pty.master) return failure("posix_openpt");
  char name[64];
  if (::grantpt(pty.master.get()) != 0 || ::unlockpt(pty.master.get()) != 0 ||
      ::ptsname_r(pty.master.get(), name, sizeof name) != 0) {
    return failure("ptsname");
  }
  pty.slave.reset(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pty.slave) return failure(name);

  termios mode = {};
  if (::tcgetattr(pty.slave.get(), &mode) != 0) return failure("tcgetattr");
  mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  if (::tcsetattr(pty.slave.get(), TCSANOW, &mode) != 0) return failure("tcsetattr");
  set_window_size(pty.master.get(), size);
  return pty;
}

WindowSize window_size_of(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return {.rows = size.ws_row, .columns = size.ws_col};
}

void set_window_size(int master, WindowSize size) {
  if (size.rows <= 0 || size.columns <= 0) return;
  winsize value = {};
  value.ws_row = static_cast<unsigned short>(size.rows);
  value.ws_col = static_cast<unsigned short>(size.columns);
  ::ioctl(master, TIOCSWINSZ, &value);
}

}  // namespace accel::supervisor

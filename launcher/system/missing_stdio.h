// MissingStdio: descriptors 0, 1 and 2 of a program that was started without some of them.
//
// Threads:  main()'s, before anything else.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace accel::launcher {

// Without it the program's own files get these numbers, and its workers get them as their input and output.
inline void open_missing_stdio() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
}

}  // namespace accel::launcher

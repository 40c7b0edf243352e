// A user database that does not answer, for LD_PRELOAD: a look-up of the uid $ACCEL_TEST_SILENT_UID never returns.

#include <cerrno>
#include <cstdlib>

#include <dlfcn.h>
#include <pwd.h>
#include <unistd.h>

extern "C" int getpwuid_r(
    uid_t uid, passwd* entry, char* buffer, size_t size, passwd** found) noexcept {
  const char* silent = std::getenv("ACCEL_TEST_SILENT_UID");
  if (silent != nullptr && uid == std::strtoul(silent, nullptr, 10)) {
    while (true) ::pause();
  }
  using LookUp = int (*)(uid_t, passwd*, char*, size_t, passwd**);
  static const auto real = reinterpret_cast<LookUp>(::dlsym(RTLD_NEXT, "getpwuid_r"));
  return real == nullptr ? ENOENT : real(uid, entry, buffer, size, found);
}

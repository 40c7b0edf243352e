// What a static program leaves out of the libraries that are linked into it.
//
// dlopen(): a library of the system needs the system's C library, and two of them in one process do not know of each other's
// threads and memory. hwloc asks it for plug-ins, which the topology of cores and memory needs none of.
// udev: hwloc asks it for the names of disks, which nobody here wants; without it hwloc goes on, as on a system that has none.
// The name service: its modules are shared libraries too. /etc/hosts, DNS and /etc/passwd are read by what is linked in, and
// names are asked of the system's own `getent` first (name_lookup.h).

#include <initializer_list>

#include <dlfcn.h>
#include <nss.h>

extern "C" {

struct udev;
struct udev_device;

udev* udev_new() {
  return nullptr;
}
udev* udev_unref(udev* /*context*/) {
  return nullptr;
}
udev_device* udev_device_new_from_subsystem_sysname(udev* /*context*/,
                                                    const char* /*subsystem*/,
                                                    const char* /*name*/) {
  return nullptr;
}
udev_device* udev_device_unref(udev_device* /*device*/) {
  return nullptr;
}
const char* udev_device_get_property_value(udev_device* /*device*/, const char* /*key*/) {
  return nullptr;
}

void* dlopen(const char* /*path*/, int /*mode*/) noexcept {
  return nullptr;
}
int dlclose(void* /*library*/) noexcept {
  return -1;
}
void* dlsym(void* /*library*/, const char* /*name*/) noexcept {
  return nullptr;
}
char* dlerror() noexcept {
  static char reason[] = "this program is static: it opens no shared library";
  return reason;
}

}  // extern "C"

namespace {

[[gnu::constructor]] void ask_no_modules() {
  ::__nss_configure_lookup("hosts", "files dns");
  for (const char* database : {"passwd", "group", "services", "protocols", "networks"})
    ::__nss_configure_lookup(database, "files");
}

}  // namespace

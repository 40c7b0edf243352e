// A program that is executed again as a worker runs one registered function and nothing of main().
//
// The functions are registered by constructors of objects at namespace scope, and may use any such object of the
// program; so they can run only after all constructors, and there is no place after them but main() itself. The C
// library calls main() from __libc_start_main(), which gets it as an argument: this definition, found before the C
// library's own, hands over another function in a worker and nothing else ever. Tools that trace programs take the same
// way from LD_PRELOAD.
//
// It is found first wherever the program itself is linked to this library, as the compiler driver puts libc last. Not
// where another library brings it, which is behind libc then, nor in programs that are linked statically with libc: it
// notes that it was called, and the launchers execute nothing again where it was not.

#include "libaccel/launch/main_hook.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

#include <accel/export.h>

#include "libaccel/launch/worker_entry.h"

namespace {

bool g_is_hooked = false;  // written before main(), by the only thread

using Main = int (*)(int, char**, char**);
using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);

int worker_main(int, char**, char**) {
  const std::string name = std::getenv(accel::launch::kFunctionVariable);
  ::unsetenv(accel::launch::kFunctionVariable);  // what the worker starts is no worker
  ::_exit(accel::launch::run_registered(name));
}

}  // namespace

bool accel::launch::is_main_hooked() noexcept {
  return g_is_hooked;
}

extern "C" ACCEL_EXPORT int __libc_start_main(Main main,
                                              int argc,
                                              char** argv,
                                              void (*init)(),
                                              void (*fini)(),
                                              void (*rtld_fini)(),
                                              void* stack_end) {
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  if (start == nullptr) {
    std::fputs("accel: the C library has no __libc_start_main\n", stderr);
    ::_exit(127);
  }
  g_is_hooked = true;
  const bool is_worker = std::getenv(accel::launch::kFunctionVariable) != nullptr;
  return start(is_worker ? worker_main : main, argc, argv, init, fini, rtld_fini, stack_end);
}

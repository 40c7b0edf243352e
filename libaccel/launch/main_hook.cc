// A program that is executed again as a worker runs one registered function and nothing of main().
//
// The functions are registered by constructors of objects at namespace scope, and may use any such object of the
// program; so they can run only after all constructors, and there is no place after them but main() itself. The C
// library calls main() from __libc_start_main(), which gets it as an argument: this definition, found before the C
// library's own, hands over another function in a worker and nothing else ever. Tools that trace programs take the same
// way from LD_PRELOAD.
//
// It is found first wherever this library is linked before libc, which the compiler driver puts last. Not for programs
// that are linked statically with libc: those call init_launcher().

#include <cstdio>
#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

#include <accel/export.h>

#include "libaccel/launch/worker_entry.h"

namespace {

using Main = int (*)(int, char**, char**);
using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);

int worker_main(int, char**, char**) {
  const std::string name = std::getenv(accel::launch::kFunctionVariable);
  ::unsetenv(accel::launch::kFunctionVariable);  // what the worker starts is no worker
  ::_exit(accel::launch::run_registered(name));
}

}  // namespace

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
  const bool is_worker = std::getenv(accel::launch::kFunctionVariable) != nullptr;
  return start(is_worker ? worker_main : main, argc, argv, init, fini, rtld_fini, stack_end);
}

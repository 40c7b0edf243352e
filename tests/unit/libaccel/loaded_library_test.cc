// libaccel.so in programs that were not linked to it: plugins, and Python's ctypes.

#include <string>

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace {

// The C library keeps little room for what a library that is loaded late has local to threads by the static model.
TEST(LoadedLibrary, LoadsIntoARunningProgram) {
  void* const library = ::dlopen(ACCEL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  const char* const failure = library == nullptr ? ::dlerror() : nullptr;
  EXPECT_NE(library, nullptr) << (failure == nullptr ? "" : failure);
}

}  // namespace

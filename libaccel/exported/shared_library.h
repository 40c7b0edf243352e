// SharedLibrary: a file of machine code, before the loader gets it.
//
// The loader maps what the segments of a library say: one that was cut off ends the process with SIGBUS.
//
// What AOTInductor compiles for the CPU asks for libtorch.so, of which it uses nothing: that is an empty library beside
// libtorch_cpu.so, which in PyTorch's CUDA wheel asks for all of CUDA. Programs that train on CPUs do not load it, and may not even
// have what it asks for.
//
// Threads:  functions without state.
// Source:   elf(5); System V ABI, dynamic section.
#pragma once

#include <filesystem>
#include <string>

namespace accel::exported {

// Whether it is a library for 64 bits, and the file reaches as far as its segments.
[[nodiscard]] bool is_whole_library(const std::filesystem::path& library);

// Changes the file so that it asks for `instead`, which it asks for too, where it asked for `name`. Leaves one as it is that does
// not ask for both, and what is no library for 64 bits.
void need_instead(const std::filesystem::path& library,
                  const std::string& name,
                  const std::string& instead);

}  // namespace accel::exported

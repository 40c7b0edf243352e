// StaticProgram: a program that was linked with everything it needs, the C library too (cmake/static_programs.cmake). It runs with
// any C library, and opens no shared library: one of the system's would bring a second C library along.
//
// Threads:  any.
#pragma once

namespace accel::launcher {

// Whether this program is one: its file names no loader of shared libraries.
[[nodiscard]] bool is_static_program();

}  // namespace accel::launcher

// CloseOnExec: descriptors that a program that is executed must not get.
//
// Threads:  any; also a child between clone and exec, and beside threads that open descriptors: they see to their own.
#pragma once

namespace accel::supervisor {

// Marks all descriptors from `first` on. On kernels before 5.11, which cannot do it in one call, those of /proc/self/fd.
// False, with errno: neither works. Cost  one system call, on older kernels one for each descriptor.
bool close_on_exec_from(int first) noexcept;

// What it does on older kernels; for tests.
bool close_on_exec_one_by_one(int first) noexcept;

}  // namespace accel::supervisor

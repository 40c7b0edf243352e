// DashboardUrl: the file with a dashboard's address, for those who may read it.
//
// The address has a token. What a program prints may be read by others: a file of its user is not.
//
// Threads:  a function without state; writes a file.
#pragma once

#include <string>

#include <accel/result.h>

namespace accel::supervisor {

// Writes the address where this process's own user alone may read it, in place of a file that was there. Errors  kFileIo.
[[nodiscard]] Result<void> write_dashboard_url(const std::string& path, const std::string& url);

}  // namespace accel::supervisor

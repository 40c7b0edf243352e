// Fuzzes host lists: any text gives names or an error with a remedy, and names that compress give
// themselves back.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/hostlist.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  using namespace accel;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::size_t kMost = 4096;  // keeps one input quick
  const auto hosts = expand_hostlist(text, kMost);
  if (!hosts) {
    if (hosts.error().message().empty() || hosts.error().remedy().empty()) std::abort();
    return 0;
  }
  if (hosts->size() > kMost) std::abort();
  for (const std::string& host : *hosts) {
    if (!is_host_name(host)) std::abort();
  }
  const auto again = expand_hostlist(compress_hostlist(*hosts), kMost);
  if (!again || *again != *hosts) std::abort();
  return 0;
}

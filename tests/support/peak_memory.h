// PeakMemory: how much more memory this process has had since some moment than it had then.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace accel::test {

class PeakMemory {
 public:
  // Starts at the present: the kernel forgets the peaks of before.
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";
    begin_ = bytes_of("VmRSS:");
  }
  // False under AddressSanitizer, which keeps what was freed and pads what is allocated.
  [[nodiscard]] static constexpr bool is_the_programs_own() {
#if defined(__SANITIZE_ADDRESS__)
    return false;
#elif defined(__has_feature)
    return !__has_feature(address_sanitizer);
#else
    return true;
#endif
  }
  [[nodiscard]] std::int64_t growth_bytes() const {
    return bytes_of("VmHWM:") - begin_;
  }
  // Of which kinds the present memory is.
  [[nodiscard]] static std::string report() {
    std::string text;
    for (const char* field : {"RssAnon:", "RssFile:", "RssShmem:"})
      text += std::string(field) + " " + std::to_string(bytes_of(field)) + " bytes ";
    return text;
  }

 private:
  static std::int64_t bytes_of(const std::string& field) {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
      std::int64_t kib = 0;
      if (word == field && status >> kib) return kib * 1024;
    }
    return -1;
  }
  std::int64_t begin_ = 0;
};

}  // namespace accel::test

// TextFile: a file that a user names, as text. It may be a folder or a device without an end.
//
// Cost:     never more memory than the bound.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel {

inline constexpr std::size_t kMostConfigBytes = 1 << 20;  // of what people write, as configurations

// `what` begins the messages: "the configuration file". Errors  kConfigUnreadable; kConfigSyntax: more bytes.
[[nodiscard]] Result<std::string> read_text_file(const std::string& path,
                                                 std::size_t most_bytes,
                                                 std::string_view what);

}  // namespace accel

// ConfigWriter: a tree of values as YAML or JSON text, and that text as a file.
//
// What is written reads back to equal values, here and in PyYAML (YAML 1.1): a text that PyYAML would take for a number,
// a boolean or nothing is quoted. Order is kept; comments are not. Scalars that came from a file stay as they were written.
#pragma once

#include <string>
#include <string_view>

#include <accel/result.h>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

[[nodiscard]] std::string to_text(const ConfigValue::Map& document, ConfigFormat format);

// By the name, as the peer does: JSON when it ends in .json.
[[nodiscard]] ConfigFormat format_of(const std::string& path);

// What keeps a file from being written there, as far as it shows before: whoever answers questions first must not answer
// them in vain. Missing folders are none. Errors  kFileIo.
[[nodiscard]] Result<void> check_place(const std::string& path);

// Replaces the file in one step: whatever happens, the old or the new content is there. A file that is replaced keeps its
// mode; through a link, what it points to is replaced, or made. Errors  kDiskFull, kFileIo.
[[nodiscard]] Result<void> write_config_file(const std::string& path, std::string_view text);

// The document in the format of the name. Errors  those above; kConfigInvalidValue: JSON has no .inf and no .nan. (The peer
// writes Infinity and NaN, which few others read.)
[[nodiscard]] Result<void> write_config(const std::string& path, const ConfigValue::Map& document);

}  // namespace accel::launcher

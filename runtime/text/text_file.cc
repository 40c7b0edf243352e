#include "runtime/text/text_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel {

Result<std::string> read_text_file(const std::string& path,
                                   std::size_t most_bytes,
                                   std::string_view what) {
  const std::string name = std::string(what) + " " + printable(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return Error(ErrorCode::kConfigUnreadable, name + " is a folder");
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return Error(ErrorCode::kConfigUnreadable, "cannot open " + name + ": " + errno_text(errno));
  constexpr std::size_t kPart = 1 << 16;
  std::string text;
  while (stream && text.size() <= most_bytes) {
    const std::size_t before = text.size();
    text.resize(before + std::min(kPart, most_bytes + 1 - before));
    stream.read(text.data() + before, static_cast<std::streamsize>(text.size() - before));
    text.resize(before + static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad())
    return Error(ErrorCode::kConfigUnreadable, "cannot read " + name + ": " + errno_text(errno));
  if (text.size() > most_bytes)
    return Error(ErrorCode::kConfigSyntax,
                 name + " has more than " + std::to_string(most_bytes) + " bytes",
                 "check that it is the file that you mean");
  return text;
}

}  // namespace accel

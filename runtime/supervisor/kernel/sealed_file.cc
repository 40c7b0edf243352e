#include "runtime/supervisor/kernel/sealed_file.h"

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "runtime/write_all.h"

namespace accel::supervisor {
namespace {

Error unusable_file(std::string what) {
  return Error(ErrorCode::kShimState, std::move(what));
}

std::string checksum(std::string_view text) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016" PRIx64, XXH3_64bits(text.data(), text.size()));
  return hex;
}

}  // namespace

std::string seal(const Seal& seal, std::string_view body) {
  std::string text(seal.magic);
  text += std::to_string(seal.version) + " " + checksum(body) + "\n";
  text += body;
  text += '\n';
  return text;
}

Result<std::string> unseal(const Seal& seal, std::string_view text, const std::string& path) {
  const std::size_t newline = text.find('\n');
  const std::string_view head = text.substr(0, newline);
  if (!head.starts_with(seal.magic) || newline == std::string_view::npos) {
    return unusable_file(path + " is no " + std::string(seal.kind));
  }
  const std::string_view fields = head.substr(seal.magic.size());
  int version = 0;
  const auto [end, failure] =
      std::from_chars(fields.data(), fields.data() + fields.size(), version);
  if (failure != std::errc() || version != seal.version) {
    return unusable_file(path + " has version " + std::string(fields.substr(0, fields.find(' '))) +
                         ", this program reads version " + std::to_string(seal.version));
  }
  std::string_view body = text.substr(newline + 1);
  const bool is_whole = body.ends_with('\n');
  if (is_whole) body.remove_suffix(1);
  const std::string_view sum = fields.substr(static_cast<std::size_t>(end - fields.data()));
  if (!is_whole || sum != " " + checksum(body))
    return unusable_file(path + " is damaged: its checksum does not match");
  return std::string(body);
}

Result<void> replace_file(int folder, const std::string& name, std::string_view text) {
  const std::string fresh = name + ".new";
  const UniqueFd file(::openat(folder,
                               fresh.c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                               S_IRUSR | S_IWUSR));
  if (!file) return unusable_file("cannot create " + fresh + ": " + errno_text(errno));
  if (const int error = write_all(file.get(), text); error != 0)
    return unusable_file("cannot write " + fresh + ": " + errno_text(error));
  if (::renameat(folder, fresh.c_str(), folder, name.c_str()) != 0) {
    return unusable_file("cannot create " + name + ": " + errno_text(errno));
  }
  return {};
}

Result<std::string> read_plain_file(int folder, const std::string& path, std::size_t limit) {
  const UniqueFd file(
      ::openat(folder, path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return unusable_file(path + " cannot be read: " + errno_text(errno));
  if (!S_ISREG(info.st_mode)) return unusable_file(path + " cannot be read: it is no plain file");
  std::string content;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unusable_file(path + " cannot be read: " + errno_text(errno));
    if (got == 0) return content;
    content.append(buffer, static_cast<std::size_t>(got));
    if (content.size() > limit)
      return unusable_file(path + " has more than " + std::to_string(limit) + " bytes");
  }
}

}  // namespace accel::supervisor

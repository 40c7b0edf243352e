#include "runtime/user_folders.h"

#include <array>
#include <filesystem>

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/environment_value.h"

namespace accel {

std::string home_folder(const EnvMap& environment) {
  if (std::string home = value_in(environment, "HOME"); !home.empty()) return home;
  std::array<char, 16384> text;
  passwd entry = {};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, text.data(), text.size(), &found) != 0) return "";
  return found == nullptr || found->pw_dir == nullptr ? "" : found->pw_dir;
}

std::string temporary_folder(const EnvMap& environment) {
  const std::string named = value_in(environment, "TMPDIR");
  struct stat info = {};
  const bool is_usable = !named.empty() && ::stat(named.c_str(), &info) == 0 &&
                         S_ISDIR(info.st_mode) && ::access(named.c_str(), W_OK | X_OK) == 0;
  std::error_code failure;  // the folder in which the program was started is gone
  const auto whole = std::filesystem::absolute(is_usable ? named : "/tmp", failure);
  if (failure) return "/tmp";
  const auto normal = whole.lexically_normal();  // a slash at its end is an empty name
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

std::string default_config_path(const EnvMap& environment, const std::string& home) {
  std::string cache = value_in(environment, "HF_HOME");
  if (cache.empty()) {
    const std::string base = value_in(environment, "XDG_CACHE_HOME");
    cache = (base.empty() ? "~/.cache" : base) + "/huggingface";
  }
  if (cache == "~" || cache.starts_with("~/")) {
    if (home.empty()) return "";
    cache.replace(0, 1, home);
  }
  return (std::filesystem::path(cache) / "accelerate" / "default_config.yaml").string();
}

}  // namespace accel

// ScratchFolder: an empty folder for one test, removed with all that is in it when the test ends.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace accel::test {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "accel-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  // The path of an entry, which need not exist.
  [[nodiscard]] std::string file(std::string_view name) const { return (path_ / name).string(); }

  // Writes a file, with the folders it needs, and returns its path.
  std::string write(std::string_view name,
                    std::string_view content,
                    bool is_executable = false) const {
    const std::filesystem::path target = path_ / name;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream(target, std::ios::binary) << content;
    if (is_executable) {
      std::filesystem::permissions(
          target, std::filesystem::perms::owner_all, std::filesystem::perm_options::add);
    }
    return target.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace accel::test

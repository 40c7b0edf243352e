// ScratchFolder: an empty folder for one test, removed with all that is in it when the test ends.
//
// What a test constructs before run_ranks() (support/rank_group.h) is constructed in every rank again,
// and ranks end without destructors. So the parent's folder is everybody's: it is known to the ranks by
// the environment, under the number of folders that were there before it, and only the parent removes
// it.
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
  ScratchFolder() : variable_("ACCEL_TEST_SCRATCH_" + std::to_string(num_folders()++)) {
    const char* const of_parent = std::getenv(variable_.c_str());
    is_owner_ = std::getenv("ACCEL_TEST_RANK") == nullptr || of_parent == nullptr;
    if (!is_owner_) {
      path_ = of_parent;
      return;
    }
    std::string name = (std::filesystem::temp_directory_path() / "accel-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
    ::setenv(variable_.c_str(), name.c_str(), 1);
  }
  ~ScratchFolder() {
    --num_folders();
    if (!is_owner_) return;
    ::unsetenv(variable_.c_str());
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
  // Of this process, alive now.
  static int& num_folders() {
    static int number = 0;
    return number;
  }

  std::string variable_;
  std::filesystem::path path_;
  bool is_owner_ = true;
};

}  // namespace accel::test

#include "runtime/checkpoint/folder_exchange.h"

#include <system_error>

#include <accel/error.h>

#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& folder) {
  const Result<Manifest> manifest = read_manifest(folder);
  return manifest && check_sizes(folder, *manifest);
}

}  // namespace

void finish_exchange(FileSystem& file_system, const fs::path& folder, Unnamed which) {
  std::error_code error;
  if (fs::exists(folder, error) || error) return;
  const fs::path temporary = temporary_folder(folder);
  if (const fs::path aside = aside_of(temporary); is_checkpoint(aside)) {
    file_system.rename(aside, folder);
  } else if (which == Unnamed::kAny && is_checkpoint(temporary)) {
    file_system.rename(temporary, folder);
  }
}

void finish_exchange_if_possible(FileSystem& file_system, const fs::path& folder) {
  const fs::path name = folder.has_filename() ? folder : folder.parent_path();
  try {
    finish_exchange(file_system, name, Unnamed::kAside);
  } catch (const Error&) {
    // The load says what is missing.
  }
}

}  // namespace accel::checkpoint

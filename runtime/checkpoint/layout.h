// Layout: the names of a checkpoint's files and folders.
//
// Threads:  pure functions.
#pragma once

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace accel::checkpoint {

// "model", "model_1", "model_2": the first of a kind has no number.
inline std::string numbered(std::string_view kind, size_t index) {
  return std::string(kind) + (index == 0 ? "" : "_" + std::to_string(index));
}

inline std::string random_stem(int rank) {
  return "random_states_" + std::to_string(rank);
}
inline std::string custom_stem(size_t index) {
  return "custom_checkpoint_" + std::to_string(index);
}

inline constexpr std::string_view kTensorSuffix = ".safetensors";
inline constexpr std::string_view kValueSuffix = ".json";

// Where a checkpoint is built, beside its final place: the same file system, and a name that no
// load looks at.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";
inline std::filesystem::path temporary_folder(const std::filesystem::path& folder) {
  return folder.parent_path() / (std::string(kTemporaryPrefix) + folder.filename().string());
}

inline constexpr std::string_view kSeriesPrefix = "checkpoint_";
inline std::string series_name(std::int64_t iteration) {
  return std::string(kSeriesPrefix) + std::to_string(iteration);
}

// The N of "checkpoint_N"; std::nullopt for every other name ("checkpoint_07" included).
inline std::optional<std::int64_t> series_number(const std::string& name) {
  if (!name.starts_with(kSeriesPrefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kSeriesPrefix.size(), end, number);
  if (error != std::errc() || rest != end || series_name(number) != name) return std::nullopt;
  return number;
}

}  // namespace accel::checkpoint

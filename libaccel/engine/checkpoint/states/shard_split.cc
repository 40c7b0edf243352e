// Sizes, the split, and the names of shards.

#include "libaccel/engine/checkpoint/states/shard_split.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include <accel/error.h>

namespace accel::checkpoint {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array kUnits = {
    Unit{"TIB", 1099511627776.0},
    Unit{"GIB", 1073741824.0},
    Unit{"MIB", 1048576.0},
    Unit{"KIB", 1024.0},
    Unit{"TB", 1e12},
    Unit{"GB", 1e9},
    Unit{"MB", 1e6},
    Unit{"KB", 1e3},
};

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text, const std::string& option) {
  const Error error(
      ErrorCode::kInvalidArgument,
      "\"" + std::string(text) + "\" is not a size",
      "give " + option + " as a number and TB, GB, MB, KB, TiB, GiB, MiB or KiB: \"5GB\"");
  const std::string capitals = upper(text);
  double unit = 1;
  std::string_view digits = capitals;
  for (const Unit& candidate : kUnits) {
    if (!capitals.ends_with(candidate.name)) continue;
    unit = candidate.bytes / (text.back() == 'b' ? 8 : 1);
    digits.remove_suffix(candidate.name.size());
    break;
  }
  double value = 0;
  const auto [rest, fault] = std::from_chars(
      digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed);
  const double bytes = value * unit;
  // 2^63: far above any disk, and still exact as a conversion target.
  if (fault != std::errc() || rest != digits.data() + digits.size() || !(bytes >= 0) ||
      bytes > 9.2e18) {
    return error;
  }
  return static_cast<std::uint64_t>(bytes);
}

Result<std::uint64_t> parse_shard_size(std::string_view text) {
  auto bytes = parse_size(text, "max_shard_size");
  if (bytes && *bytes == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "\"" + std::string(text) + "\" is not a size of shards",
                 "give max_shard_size at least one byte");
  }
  return bytes;
}

std::vector<std::vector<std::string>> split_into_shards(const std::vector<SizedName>& tensors,
                                                        std::uint64_t max_bytes) {
  std::vector<std::vector<std::string>> shards;
  std::vector<std::string> open;
  std::uint64_t open_bytes = 0;
  for (const SizedName& tensor : tensors) {
    if (tensor.bytes > max_bytes) {
      shards.push_back({tensor.name});
      continue;
    }
    if (open_bytes + tensor.bytes > max_bytes) {
      shards.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(tensor.name);
    open_bytes += tensor.bytes;
  }
  if (!open.empty() || shards.empty()) shards.push_back(std::move(open));
  return shards;
}

std::string shard_name(size_t index, size_t count, launcher::WeightsFormat format) {
  const std::string whole = launcher::weights_name(format);
  if (count == 1) return whole;
  const size_t suffix = whole.rfind('.');
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", index + 1, count);
  return whole.substr(0, suffix) + numbers + whole.substr(suffix);
}

bool is_shard_name(std::string_view name, launcher::WeightsFormat format) {
  if (name == launcher::weights_name(format) || name == shard_index_name(format)) return true;
  std::string form = shard_name(0, 2, format);
  if (name.size() != form.size()) return false;
  for (size_t i = 0; i < form.size(); ++i) {
    const bool is_digit = form[i] >= '0' && form[i] <= '9';
    if (is_digit ? name[i] < '0' || name[i] > '9' : name[i] != form[i]) return false;
  }
  return true;
}

std::string shard_index_name(launcher::WeightsFormat format) {
  return launcher::weights_name(format) + ".index.json";
}

}  // namespace accel::checkpoint

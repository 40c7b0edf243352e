#include "runtime/byte_size.h"

#include <array>
#include <charconv>
#include <limits>

namespace accel {
namespace {

// Powers of two; std::nullopt for no unit.
std::optional<unsigned> shift_of(std::string_view unit) {
  if (unit.empty()) return 0;
  if (unit.size() > 1) return std::nullopt;
  switch (unit.front()) {
    case 'k':
    case 'K':
      return 10;
    case 'm':
    case 'M':
      return 20;
    case 'g':
    case 'G':
      return 30;
    case 't':
    case 'T':
      return 40;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<std::uint64_t> parse_byte_size(std::string_view text) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  const auto shift = shift_of(std::string_view(rest, static_cast<std::size_t>(end - rest)));
  if (!shift || number > (kMost >> *shift)) return std::nullopt;
  return number << *shift;
}

std::string byte_text(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  constexpr std::array kUnits = {" KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  unsigned shift = 10;
  while (unit + 1 < kUnits.size() && (bytes >> shift) >= 1024) {
    ++unit;
    shift += 10;
  }
  const std::uint64_t tenths = ((bytes >> (shift - 10)) * 10) >> 10;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + kUnits.at(unit);
}

}  // namespace accel

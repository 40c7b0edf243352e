#include "runtime/byte_size.h"

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

}  // namespace accel

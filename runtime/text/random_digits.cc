#include "runtime/text/random_digits.h"

#include <random>
#include <string_view>

namespace accel {

std::string random_digits(std::size_t count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device source;
  std::string text;
  while (text.size() < count) text += kDigits[source() % kDigits.size()];
  return text;
}

}  // namespace accel

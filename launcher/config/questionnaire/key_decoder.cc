#include "launcher/config/questionnaire/key_decoder.h"

namespace accel::launcher {
namespace {

constexpr char kEscape = '\x1b';
constexpr char kControlD = '\x04';

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

bool is_control(char byte) {
  return static_cast<unsigned char>(byte) < 0x20;
}

std::optional<Key> plain_key(char byte) {
  if (is_digit(byte)) return Key{KeyKind::kDigit, byte - '0'};
  switch (byte) {
    case 'k':
      return Key{KeyKind::kUp};
    case 'j':
      return Key{KeyKind::kDown};
    case '\r':
    case '\n':
      return Key{KeyKind::kEnter};
    case kControlD:
      return Key{KeyKind::kEnd};
    default:
      return std::nullopt;
  }
}

std::optional<Key> key_of_sequence(char final_byte, int number) {
  switch (final_byte) {
    case 'A':
      return Key{KeyKind::kUp};
    case 'B':
      return Key{KeyKind::kDown};
    case 'H':
      return Key{KeyKind::kFirst};
    case 'F':
      return Key{KeyKind::kLast};
    case '~':
      if (number == 1 || number == 7) return Key{KeyKind::kFirst};
      if (number == 4 || number == 8) return Key{KeyKind::kLast};
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Key> KeyDecoder::take(char byte) {
  if (byte == kEscape) {
    place_ = Place::kEscape;
    number_ = 0;
    return std::nullopt;
  }
  if (place_ == Place::kPlain) return plain_key(byte);
  if (place_ == Place::kEscape) {
    const bool is_sequence = byte == '[' || byte == 'O';
    place_ = is_sequence ? Place::kSequence : Place::kPlain;
    // Enter and the like after a lone Esc; Alt with a letter is no key here.
    return is_control(byte) ? plain_key(byte) : std::nullopt;
  }
  constexpr int kMost = 1000;
  if (is_digit(byte) && number_ < kMost) number_ = number_ * 10 + (byte - '0');
  const bool is_final = byte >= 0x40 && byte <= 0x7e;
  const bool is_broken = is_control(byte) || static_cast<unsigned char>(byte) > 0x7e;
  if (!is_final && !is_broken) return std::nullopt;
  place_ = Place::kPlain;
  return is_final ? key_of_sequence(byte, number_) : plain_key(byte);
}

}  // namespace accel::launcher

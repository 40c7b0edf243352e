// KeyDecoder: what was pressed, from the bytes that a terminal sends.
//
//   plain --ESC--> escape --'[' or 'O'--> sequence --final byte (0x40 to 0x7e)--> plain
//
// Arrows are ESC [ A and, in application mode, ESC O A; with Shift or Ctrl ESC [ 1 ; 2 A, which is the same key here. A
// sequence that means nothing here is swallowed whole, so that its letters are not taken for keys.
//
// Threads:  one at a time.
#pragma once

#include <optional>

namespace accel::launcher {

enum class KeyKind {
  kUp,     // also k
  kDown,   // also j
  kFirst,  // Home
  kLast,   // End
  kDigit,
  kEnter,
  kEnd,  // Ctrl-D on an empty line: the end of the input
};

struct Key {
  KeyKind kind = KeyKind::kEnter;
  int digit = 0;  // kDigit only

  bool operator==(const Key&) const = default;
};

class KeyDecoder {
 public:
  // The key that ends with this byte, if there is one.
  [[nodiscard]] std::optional<Key> take(char byte);

 private:
  enum class Place { kPlain, kEscape, kSequence };
  Place place_ = Place::kPlain;
  int number_ = 0;  // of the sequence: 1 and 7 are Home, 4 and 8 are End before a '~'
};

}  // namespace accel::launcher

// TextColumns: how wide a text is on a terminal, and texts of a given width.
//
// Threads:  pure.
// Source:   UAX 11 (East Asian Width), its ranges of wide letters in blocks; combining marks take no column.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accel {

// Of valid UTF-8 without control characters, as printable() gives it.
[[nodiscard]] std::size_t text_columns(std::string_view text);

// The beginning of `text` that fits; one that is cut ends in '~'.
[[nodiscard]] std::string fitted_columns(std::string_view text, std::size_t columns);

// Exactly so many columns: as fitted_columns(), with blanks behind (or before) it.
[[nodiscard]] std::string padded_columns(std::string_view text, std::size_t columns);
[[nodiscard]] std::string right_columns(std::string_view text, std::size_t columns);

}  // namespace accel

// ValueText: values of trackers as text: JSON, YAML of one line, cells of CSV.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>

#include <accel/tracker_value.h>

namespace accel::tracking {

// What is not finite: null, as the standard wants it, or as Python's json module reads and writes it.
enum class NonFinite { kNull, kPython };

// On one line, in the order of the dictionary. Doubles as the shortest text that reads back as the same; 1.0 stays a double.
// Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string json_text(const TrackerValue& value,
                                    NonFinite non_finite = NonFinite::kNull);
// {"a":1,"b":2} without its braces: to be put together with other members. Empty for an empty dictionary.
[[nodiscard]] std::string json_members(const TrackerDict& values,
                                       NonFinite non_finite = NonFinite::kNull);

// A number, or a text in quotes where RFC 4180 wants them; lists as JSON. Empty for none.
[[nodiscard]] std::string csv_cell(const TrackerValue& value);
[[nodiscard]] std::string csv_quoted(std::string_view text);

// `name: value` for each, values in JSON, which YAML reads; .nan and .inf as YAML spells them.
[[nodiscard]] std::string yaml_lines(const TrackerDict& values);

}  // namespace accel::tracking

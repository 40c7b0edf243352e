// JsonArgument: a JSON object where the path of a file is expected, as it is or in base64. DeepSpeed's configuration may be given
// so.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accel {

// The object's text: of "{...}", and of its base64 in either alphabet of RFC 4648, with or without padding. std::nullopt for
// anything else, which is a path then. Whether the text is JSON at all remains to be seen.
[[nodiscard]] std::optional<std::string> json_in_place_of_path(std::string_view argument);

}  // namespace accel

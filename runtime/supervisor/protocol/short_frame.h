// ShortFrame: an event in a shorter frame, for when a long one cannot be sent.
//
// What workers wrote is what makes events long. It is cut at its beginning, as the end says most; an error file, which
// is no use in parts, is left out.
//
// Threads:  pure.
// Source:   tests/unit/supervisor/short_frame_test.cc.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "runtime/supervisor/protocol/frames.h"

namespace accel::supervisor {

// Bytes of what workers wrote in it. A frame is longer, up to six times.
[[nodiscard]] std::size_t text_bytes(const HostEvent& event);

// The frame of `event` in at most `most_bytes`, with texts as long as that allows; an outcome tells of it, and `why`, in its
// notices. None: the event is too long without its texts too.
[[nodiscard]] std::optional<std::string> short_frame(const HostEvent& event,
                                                     std::size_t most_bytes,
                                                     const std::string& why);

}  // namespace accel::supervisor

// Wire: the messages of agent/coordinator/messages/messages.h as those of proto/accel/v1/rendezvous.proto, and back.
//
// What comes in is a stranger's: sizes, ranges and names are checked here, so that the step functions see only values
// of their domain. std::nullopt: nothing that this build understands; the message is dropped.
//
// Threads:  pure functions.
// Source:   round trips and hostile messages in tests/unit/agent/rendezvous/rendezvous_test.cc.
#pragma once

#include <optional>

#include "accel/v1/rendezvous.pb.h"
#include "agent/coordinator/messages/messages.h"

namespace accel::agent {

class SpecsSent;

[[nodiscard]] v1::AgentMsg to_proto(const AgentMessage& message);
[[nodiscard]] std::optional<AgentMessage> from_proto(const v1::AgentMsg& message);

// `specs`: of the session that it is sent to, whose node takes digests; nullptr: the spec goes whole.
[[nodiscard]] v1::CoordMsg to_proto(const CoordinatorMessage& message, SpecsSent* specs = nullptr);
[[nodiscard]] std::optional<CoordinatorMessage> from_proto(const v1::CoordMsg& message);

}  // namespace accel::agent

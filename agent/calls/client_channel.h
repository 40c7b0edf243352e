// ClientChannel: what every connection of accel to an agent or a coordinator has in common.
//
// Threads:  a pure function.
// Source:   docs/admin/security.md names the limits.
#pragma once

#include <chrono>

#include <grpcpp/support/channel_arguments.h>

namespace accel::agent {

// An attempt to connect to an agent: when thousands come at once, as after its restart, their handshakes wait for their
// turn, and who gives up early only comes again.
inline constexpr std::chrono::milliseconds kConnectLimit{20'000};

// How long a call with one answer may take.
inline constexpr std::chrono::seconds kUnaryDeadline{10};

// A connection of its own, tried again after 0.1 s to 1 s, and given up 5 s after what is not acknowledged (keepalive
// sets TCP_USER_TIMEOUT). `connect_limit`: when an attempt to connect makes room for the next one.
[[nodiscard]] grpc::ChannelArguments client_channel_arguments(
    std::chrono::milliseconds connect_limit = kConnectLimit);

}  // namespace accel::agent

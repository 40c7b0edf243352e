// LocalCaller: the client's side of the sockets of an agent on this machine.
//
// A connect() that may block waits for a place in the socket's queue; one that may not, as gRPC's own, fails when the queue is
// full, which other users' floods can bring about.
//
// Threads:  functions without state.
#pragma once

#include <chrono>
#include <string>

#include <sys/socket.h>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::agent {

// How long an agent that listens may take to accept, and to give a ticket.
inline constexpr std::chrono::seconds kLocalConnectLimit{5};

// A connected, blocking socket of this type (SOCK_STREAM, SOCK_SEQPACKET) whose calls are given up after kLocalConnectLimit.
// Errors  kAgentUnreachable, kAgentRefused: the socket is for a group that the caller is not in.
[[nodiscard]] Result<UniqueFd> connect_to_socket(const std::string& path, int type);

// A ticket (agent/ticket_book.h), and the connection that keeps it valid.
struct Ticket {
  std::string text;
  UniqueFd connection;
};
// Errors  those of connect_to_socket(); kAgentUnreachable: the agent gave none, as to a user who has too many.
[[nodiscard]] Result<Ticket> fetch_ticket(const std::string& path);

}  // namespace accel::agent

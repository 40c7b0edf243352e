#!/usr/bin/python3
"""A user who takes from an agent all that it gives: connections, tickets, calls, streams and jobs, again and again.

    flooder.py FOLDER_OF_SOCKETS PROGRAM_ACCEL       says "round N" after each round, until it is killed
"""
import itertools
import resource
import socket
import subprocess
import sys

import raw_grpc

FOLDER, ACCEL = sys.argv[1:]
EACH = 300  # connections to each socket: more than one user may have
held = []
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < 8 * EACH else 8 * EACH, hard))


def connect(path, kind):
    connection = socket.socket(socket.AF_UNIX, kind)
    connection.settimeout(10)
    connection.connect(f"{FOLDER}/{path}")
    return connection


ticket, kept = raw_grpc.take_ticket(FOLDER)
if len(ticket) != 64:
    sys.exit("no ticket")
for number in itertools.count(1):
    # Calls and streams first: then there is room for their connections.
    for method in ("ListJobs", "Watch", "ListJobs"):
        try:
            held.append(raw_grpc.call(FOLDER, method, ticket, count=32))
        except OSError:
            pass  # turned away
    for path, kind in [("tickets.sock", socket.SOCK_SEQPACKET), ("agent.sock", socket.SOCK_STREAM)]:
        for _ in range(EACH):
            try:
                held.append(connect(path, kind))
            except OSError:
                pass
    subprocess.run([ACCEL, "run", "--agent", FOLDER, "--detach", "--", "/bin/sleep", "1000"], capture_output=True)
    print("round", number, flush=True)
    # The newest stay: what it has, it has all the time.
    for connection in held[:-2 * EACH]:
        connection.close()
    del held[:-2 * EACH]

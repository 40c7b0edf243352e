"""gRPC by hand, for callers that do what no client does. Needs no other module: it is copied to where any user can run it."""
import re
import socket


def take_ticket(folder):
    """A ticket of the agent whose sockets are in `folder`, and the connection that keeps it valid."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"{folder}/tickets.sock")
    return connection.recv(128), connection


def call(folder, method, ticket, count=1, message=b""):
    """The connection of `count` calls: HTTP/2 with headers that are neither compressed nor indexed."""
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def data_of(stream):
        data = b"\0" + len(message).to_bytes(4, "big") + message
        parts = [data[i:i + 16384] for i in range(0, len(data), 16384)]  # as long as any server takes
        return b"".join(frame(0, int(i + 1 == len(parts)), stream, part) for i, part in enumerate(parts))

    headers = {b":method": b"POST", b":scheme": b"http", b":path": b"/accel.v1.Control/" + method.encode(), b":authority": b"x",
               b"te": b"trailers", b"content-type": b"application/grpc", b"accel-ticket": ticket}
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers.items())
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(f"{folder}/agent.sock")
    caller.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
                   + b"".join(frame(1, 4, stream, block) + data_of(stream) for stream in range(1, 2 * count, 2)))
    return caller


def status_of(caller):
    """The status of the call on this connection; None when the server hung up without one."""
    answer = b""
    while not (found := re.search(rb"grpc-status.([0-9]+)", answer, re.DOTALL)):
        try:
            part = caller.recv(65536)
        except ConnectionError:
            return None
        if not part:
            return None
        answer += part
    return int(found[1])

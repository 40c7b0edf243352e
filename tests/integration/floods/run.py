#!/usr/bin/env python3
"""Connections that mean no good, at a launcher that hosts a coordinator (fault 64 of docs/reference/faults.md): silent ones by the
hundred, handshakes that never end, streams that are opened and reset by the thousand. The job goes on. Run by ctest.
"""
import pathlib
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import PATIENCE, free_port, issue_certificate, launch, write_token  # noqa: E402

NUM_IDLE = 300
NUM_STREAMS = 10_000
# As RFC 9113 has them.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_HEADERS = 4
CANCEL = 8


def frame(kind, flags, stream, body):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def literal(name, value):
    """One header field without indexing, its name spelled out (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


REQUEST = b"\x83\x86" + literal(b":path", b"/accel.v1.Rendezvous/Session") + literal(b":authority", b"x") + \
    literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")


class Floods(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-floods-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = write_token(self.folder)
        self.script = self.folder / "worker.sh"
        self.script.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\nwhile [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        self.script.chmod(0o755)
        self.address = ("127.0.0.1", free_port())
        self.launchers = []
        self.addCleanup(lambda: [launcher.close() for launcher in reversed(self.launchers)])

    def launch(self, name, is_secure):
        secure = ["--rdzv_insecure"]
        if is_secure:
            secure = ["--rdzv_tls_dir", issue_certificate(self.folder / "ca", "node", name)]
        launcher = launch(name, ["--nnodes", "1:2", "--nproc_per_node", 1, "--rdzv_endpoint", "%s:%d" % self.address, "--node_id", name,
                                 "--rdzv_token_file", self.token, *secure, "--max_restarts", 3, self.script])
        self.launchers.append(launcher)
        return launcher

    def connect(self):
        connection = socket.create_connection(self.address, PATIENCE)
        connection.settimeout(PATIENCE)
        self.addCleanup(connection.close)
        return connection

    def is_taken_from(self, source):
        """Whether a silent connection from there stays: one too many is reset at once."""
        try:
            with socket.create_connection(self.address, PATIENCE, source_address=(source, 0)) as connection:
                connection.settimeout(1)
                connection.recv(1)
        except TimeoutError:
            return True
        except ConnectionError:
            pass
        return False

    def end_job(self, *launchers):
        (self.folder / "worker.sh.stop").touch()
        for launcher in launchers:
            self.assertEqual(launcher.wait(), 0, launcher.text())

    def assert_is_cut(self, connection):
        try:
            while connection.recv(65536):
                pass  # what the server says before it hangs up
        except ConnectionError:
            pass  # TimeoutError is none: it is still open then, and the test fails

    def test_fault64_silent_connections_and_slow_handshakes_are_cut_and_nodes_join_meanwhile(self):
        a = self.launch("a", is_secure=True)
        a.wait_for(" of 1")
        idle = [self.connect() for _ in range(NUM_IDLE)]
        slow = [self.connect() for _ in range(20)]
        quit_it = threading.Event()

        def dribble():
            # A TLS record that claims 512 bytes of ClientHello and sends one every 100 ms.
            record = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500
            for byte in record:
                for connection in slow:
                    try:
                        connection.send(bytes([byte]))
                    except OSError:
                        pass
                if quit_it.wait(0.1):
                    return
        dribbler = threading.Thread(target=dribble)
        dribbler.start()
        self.addCleanup(dribbler.join)
        self.addCleanup(quit_it.set)
        b = self.launch("b", is_secure=True)
        b.wait_for("this node takes part from")  # it is believed and waits for the next generation
        for connection in idle + slow:
            self.assert_is_cut(connection)
        self.end_job(a, b)

    def test_fault64_an_address_that_takes_more_than_its_share_is_refused_and_others_join(self):
        a = self.launch("a", is_secure=True)
        a.wait_for(" of 1")
        held = []
        # Silent ones are cut meanwhile: it takes new ones until there are too many at a time.
        while a.count("refused a connection from 127.0.0.2: it has ") == 0:
            self.assertFalse(a.is_over, a.text())
            try:
                connection = socket.create_connection(self.address, PATIENCE, source_address=("127.0.0.2", 0))
            except ConnectionError:
                continue  # it was reset before we knew that it was there
            self.addCleanup(connection.close)
            held.append(connection)
            if len(held) > 800:
                held.pop(0).close()
        b = self.launch("b", is_secure=True)
        b.wait_for("this node takes part from")
        # The server sees their ends, and the address has room again.
        for connection in held:
            connection.close()
        deadline = time.monotonic() + PATIENCE
        while not self.is_taken_from("127.0.0.2"):
            self.assertLess(time.monotonic(), deadline, a.text())
        self.end_job(a, b)

    def test_fault64_streams_that_are_reset_at_once_do_not_disturb_the_job(self):
        a = self.launch("a", is_secure=False)
        a.wait_for(" of 1")
        connection = self.connect()
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        try:
            for number in range(NUM_STREAMS):
                stream = 2 * number + 1
                connection.sendall(frame(HEADERS, END_HEADERS, stream, REQUEST) + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))
        except ConnectionError:
            pass  # cut off: as good
        b = self.launch("b", is_secure=False)
        b.wait_for("this node takes part from")
        self.assertEqual(len([line for line in a.lines if line.startswith("rank ")]), 1, a.text())
        self.end_job(a, b)


if __name__ == "__main__":
    unittest.main(verbosity=1)

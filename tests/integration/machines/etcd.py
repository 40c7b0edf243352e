#!/usr/bin/env python3
"""accel-launch on several machines that learn from etcd which of them is machine 0.

A real etcd; each "machine" is a launcher of its own on this one. Run by ctest.
"""
import base64
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from etcd_gateway import Gateway  # noqa: E402
from programs import BIN, ETCD, MEMORY, PATIENCE, Program, free_address, start_etcd  # noqa: E402

HELLO = 'echo "rank $RANK of $WORLD_SIZE group $GROUP_RANK of $GROUP_WORLD_SIZE at $MASTER_ADDR run $TORCHELASTIC_RUN_ID"'
WAIT = 'echo "up $$"; exec sleep 60'
KEY = "/accel-launch/night/main"


@unittest.skipIf(ETCD is None, "etcd is not installed (Debian's etcd-server)")
class Etcd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-static-etcd-", dir=MEMORY))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.address = free_address()
        cls.etcd = start_etcd(cls.folder / "data", cls.address)
        cls.addClassCleanup(cls.etcd.close)

    def setUp(self):
        self.nodes = []
        self.addCleanup(lambda: [node.close() for node in self.nodes])

    def node(self, number, script, *more, backend="etcd", address=None):
        node = Program("node", [BIN / "accel-torchrun", "--nnodes", number, "--rdzv-backend", backend, "--rdzv-endpoint",
                                address or self.address, "--rdzv-id", "night", *more, "--no-python", "/bin/sh", "-c", script])
        self.nodes.append(node)
        return node

    def key(self):
        """What stands at the job's key."""
        return Gateway(self.address).pair(KEY)

    def results(self, *statuses):
        text = "\n".join(node.text() for node in self.nodes)
        self.assertEqual(sorted(node.wait() for node in self.nodes), list(statuses), text)
        for node in self.nodes:
            node.close()
        said = sorted(line for node in self.nodes for line in node.lines if line.startswith("rank "))
        self.nodes = []
        return said

    def test_machines_find_each_other_and_the_next_run_does_again(self):
        for backend in ("etcd", "etcd-v2", "etcd"):
            for _ in range(3):
                self.node(3, HELLO, backend=backend)
            self.assertEqual(self.results(0, 0, 0),
                             [f"rank {rank} of 3 group {rank} of 3 at 127.0.0.1 run night" for rank in range(3)])
            self.assertIsNone(self.key())

    def test_all_begin_again_together(self):
        for _ in range(2):
            self.node(2, 'echo "rank $RANK $TORCHELASTIC_RESTART_COUNT"; [ "$TORCHELASTIC_RESTART_COUNT$RANK" != 01 ]',
                      "--max-restarts", 1)
        said = self.results(0, 0)
        self.assertEqual([line for line in said if line.endswith("1")], ["rank 0 1", "rank 1 1"])

    def test_one_more_than_there_are_is_told(self):
        for _ in range(2):
            self.node(2, WAIT)
        for node in self.nodes:
            node.wait_for("up ")
        more = self.node(2, WAIT)
        more.wait_for("is one machine more than --nnodes 2 says")
        self.assertEqual(more.wait(), 2, more.text())
        self.nodes[0].process.send_signal(signal.SIGINT)
        self.results(2, 130, 130)

    def test_after_a_crash_the_same_job_starts_anew(self):
        for _ in range(2):
            self.node(2, WAIT)
        for node in self.nodes:
            node.wait_for("up ")
        main = json.loads(base64.b64decode(self.key()["value"]))
        holder = next(node for node in self.nodes if not node.count("joins machine 0"))
        os.kill(holder.process.pid, signal.SIGKILL)
        self.results(-signal.SIGKILL, 111)
        lease = self.key()["lease"]
        for _ in range(2):
            self.node(2, HELLO, "--rdzv-conf", "timeout=60")
        self.nodes[0].wait_for(f"machine 0 is {main['host']} (127.0.0.1:{main['port']}) by etcd, but nothing takes connections")
        Gateway(self.address).ask("lease/revoke", ID=lease)  # it would run out
        self.assertEqual(len(self.results(0, 0)), 2)

    def wait_for_key(self):
        end = time.monotonic() + PATIENCE
        while not self.key():
            self.assertLess(time.monotonic(), end, "\n".join(node.text() for node in self.nodes))
            time.sleep(0.02)

    def test_a_range_of_nodes_goes_on_without_a_lost_one_and_with_one_that_came_late(self):
        stop = self.folder / "stop"
        script = ('echo "rank $RANK of $WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT run $TORCHELASTIC_RUN_ID"; '
                  f"while [ ! -e {stop} ]; do sleep 0.05; done")
        host = self.node("2:3", script, "--max-restarts", 3)
        self.wait_for_key()
        lost = self.node("2:3", script, "--max-restarts", 3)
        host.wait_for("of 2 restart 0 run night")
        lost.wait_for("of 2 restart 0")
        late = self.node("2:3", script, "--max-restarts", 3)
        late.wait_for("takes part from the next restart")
        lost.process.kill()
        host.wait_for("of 2 restart 1")
        late.wait_for("of 2 restart 1")
        stop.touch()
        self.results(-signal.SIGKILL, 0, 0)
        self.assertIsNone(self.key())

    def test_a_range_and_a_number_of_nodes_are_told(self):
        for first, second, said in (("1:2", 2, "is a range, and here it is one number"), (2, "1:2", "is one number, and here it is a range")):
            node = self.node(first, WAIT)
            self.wait_for_key()
            other = self.node(second, WAIT)
            other.wait_for(said)
            self.assertEqual(other.wait(), 2, other.text())
            node.process.send_signal(signal.SIGINT)
            self.results(2, 130)
            self.assertIsNone(self.key())

    def test_an_etcd_that_is_not_there_is_named(self):
        address = free_address()
        node = self.node(2, HELLO, "--rdzv-conf", "timeout=1", address=address)
        self.assertEqual(node.wait(), 69, node.text())
        self.assertIn(f"etcd does not answer at {address}", node.text())

    def test_a_signal_ends_the_meeting(self):
        node = self.node(2, HELLO)
        self.wait_for_key()
        node.process.send_signal(signal.SIGINT)
        self.assertEqual(node.wait(), 130, node.text())
        self.assertIsNone(self.key())


if __name__ == "__main__":
    unittest.main()

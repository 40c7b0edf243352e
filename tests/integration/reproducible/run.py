#!/usr/bin/env python3
"""Reproducible training under accel-launch: a node dies, the job goes on with fewer ranks, and no bit of any step is another one."""
import os
import pathlib
import re
import shutil
import socket
import sys
import tempfile
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BUILD, PATIENCE, free_port, launch, write_token  # noqa: E402

WORKER = BUILD / "tests/reproducible_worker"
STEPS, HOLD_STEP = 6, 3
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}


class Reproducible(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-reproducible-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.nodes = []
        self.addCleanup(lambda: [node.close() for node in reversed(self.nodes)])

    def start(self, name, *options, project, hold_ranks=0):
        node = launch(name, ["--cpu", *options, WORKER, self.folder / project, STEPS, hold_ranks, HOLD_STEP],
                      env=ENVIRONMENT)
        self.nodes.append(node)
        return node

    def lines_of(self, *nodes):
        """What ranks have said of each step, and of the weights at the end."""
        text = "\n".join(node.text() for node in nodes)
        said = re.findall(r"(step \d+|weights) (.*0x.*)$", text, re.M)
        self.assertEqual(len(said), len(dict(said)), f"a step was made twice: {text}")
        return dict(said)

    def on_one_rank(self):
        node = self.start("one", "--num_processes", 1, project="one")
        self.assertEqual(node.wait(), 0, node.text())
        return self.lines_of(node)

    def test_a_node_dies_and_the_steps_that_follow_have_the_same_bits(self):
        endpoint = f"127.0.0.1:{free_port()}"
        rendezvous = ["--nnodes", "1:2", "--rdzv_endpoint", endpoint, "--rdzv_token_file",
                      write_token(self.folder), "--rdzv_insecure", "--max_restarts", 3, "--stop_grace", 2]
        a = self.start("a", *rendezvous, "--node_id", "a", project="elastic", hold_ranks=2)
        self.wait_for_host(endpoint)
        b = self.start("b", *rendezvous, "--node_id", "b", project="elastic", hold_ranks=2)
        self.wait_until_held(a, b)
        b.process.kill()
        self.assertEqual(a.wait(), 0, a.text())
        b.close()
        found = self.lines_of(a, b)
        self.assertEqual(len(found), STEPS + 1)
        self.assertEqual(found, self.on_one_rank())

    def wait_until_held(self, *nodes):
        for _ in range(PATIENCE * 20):
            if any("held" in node.text() for node in nodes):
                return
            threading.Event().wait(0.05)
        raise AssertionError("\n".join(node.text() for node in nodes))

    def wait_for_host(self, endpoint):
        address, port = endpoint.split(":")
        for _ in range(PATIENCE * 20):
            with socket.socket() as probe:
                if probe.connect_ex((address, int(port))) == 0:
                    return
            threading.Event().wait(0.05)
        raise AssertionError("nobody listens")


if __name__ == "__main__":
    unittest.main(verbosity=1)

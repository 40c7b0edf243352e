#!/usr/bin/env python3
"""In-memory checkpoints of jobs over two nodes, each a launcher of its own on this machine: a rank is killed and all go on
from memory; a node is lost, and the job goes on from the disk. Run by ctest."""
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import threading
import unittest
import uuid

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BUILD, PATIENCE, free_address, launch, write_token  # noqa: E402

STEPS = 40
EVERY = 2


def losses(programs):
    """By step; of steps that were repeated, all values."""
    found = {}
    for program in programs:
        for step, loss in re.findall(r"step (\d+) loss (\S+)$", program.text(), re.MULTILINE):
            found.setdefault(int(step), set()).add(loss)
    return found


def ranks_of(mark, path):
    """The processes of a job that run the program `path`, by rank."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if f"ACCEL_TEST_MARK={mark}".encode() not in variables or os.readlink(f"/proc/{entry}/exe") != os.path.realpath(path):
                continue
        except OSError:
            continue  # ended meanwhile
        rank = [int(text[5:]) for text in variables if text.startswith(b"RANK=")]
        if rank:
            found[rank[0]] = int(entry)
    return found


def left_of(mark):
    """Processes of a job, whatever they run."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in pathlib.Path(f"/proc/{entry}/environ").read_bytes():
                found.append((entry, os.readlink(f"/proc/{entry}/exe")))
        except OSError:
            pass
    return found


CHAR_GPT = f"{BUILD}/examples/char_gpt"


def char_gpt(project, *more, save_steps=1_000_000, steps=STEPS):
    return [CHAR_GPT, "--", "--batch_size", 2, "--max_steps", steps, "--log_steps", 1, "--save_steps", save_steps,
            "--memory_checkpoint_every", EVERY, "--project_dir", project, *more]


class Nodes(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-memory-nodes-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = write_token(self.folder)
        self.launchers = []
        self.addCleanup(lambda: [launcher.close() for launcher in reversed(self.launchers)])

    def begin(self, job):
        self.project = self.folder / job
        self.endpoint = free_address()
        self.mark = uuid.uuid4().hex

    def start(self, name, *training, ranks=2, **more):
        launcher = launch(name, ["--cpu", "--nnodes", 2, "--nproc_per_node", ranks, "--node_id", name, "--rdzv_endpoint", self.endpoint,
                                 "--rdzv_token_file", self.token, "--rdzv_insecure", "--max_restarts", 3,
                                 *char_gpt(self.project, *training, **more)], errors="replace",
                          # The kernel is one, and would let ranks of both nodes map one memory.
                          env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ACCEL_TEST_NODE": name,
                               "ACCEL_TEST_MARK": self.mark})
        self.launchers.append(launcher)
        return launcher

    def end(self, *launchers):
        for launcher in launchers:
            self.assertEqual(launcher.wait(), 0, "\n".join(each.text() for each in launchers))
        self.assertEqual(left_of(self.mark), [])

    def state(self):
        saved = self.project / "checkpoints" / "checkpoint_0"
        return {path.name: path.read_bytes() for path in saved.iterdir() if path.name != "accel_checkpoint.json"}

    def kill(self, rank):
        os.kill(ranks_of(self.mark, CHAR_GPT)[rank], signal.SIGKILL)

    def goes_on(self, kind, *training):
        self.begin(f"{kind}-whole")
        whole = [self.start(name, *training) for name in "ab"]
        self.end(*whole)
        expected, state = losses(whole), self.state()
        self.assertEqual(sorted(expected), list(range(1, STEPS + 1)))
        for launcher in whole:
            self.assertEqual(launcher.count("in-memory checkpoints take 2 x "), 1, launcher.text())

        self.begin(f"{kind}-killed")
        nodes = [self.start(name, *training) for name in "ab"]
        for rank, step, times in ((3, 7, 1), (0, 21, 2)):
            nodes[0].wait_for(f"step {step} loss")
            self.kill(rank)
            nodes[0].wait_for("going on from memory at step", times)
            self.assertFalse((self.project / "checkpoints").exists(), "something was saved on disk")
        self.end(*nodes)
        resumed = [int(step) for step in re.findall(r"going on from memory at step (\d+)", nodes[0].text())]
        for at, step in zip(resumed, (7, 21)):
            self.assertGreaterEqual(at, (step - 1) // EVERY * EVERY)
        self.assertEqual(losses(nodes), expected, resumed)
        self.assertEqual(self.state(), state, resumed)
        for launcher in nodes:
            self.assertEqual(launcher.count("in-memory checkpoints take 2 x "), 1, launcher.text())

    def test_a_model_divided_in_each_node_goes_on_from_the_memory_of_both(self):
        self.goes_on("hybrid", "--fsdp", "HYBRID_SHARD")

    def test_a_model_divided_over_both_nodes_goes_on_from_the_memory_of_both(self):
        self.goes_on("full", "--fsdp", "FULL_SHARD")

    def test_a_lost_node_takes_its_part_along_and_the_job_goes_on_from_the_disk(self):
        self.begin("lost")
        training = ("--fsdp", "FULL_SHARD")
        more = {"ranks": 1, "save_steps": 5, "steps": 10_000}  # it is stopped
        a = self.start("a", *training, **more)
        a.wait_for("node a: connected")  # so it has rank 0, which says from where the job goes on
        b = self.start("b", *training, **more)
        a.wait_for("step 8 loss")
        c = self.start("c", *training, **more)
        c.wait_for("takes part from the next restart")
        b.close()
        a.wait_for("going on from ")
        a.wait_for(f"step {max(losses([a])) + 5} loss")
        for launcher in (a, c):
            launcher.process.send_signal(signal.SIGTERM)
        for launcher in (a, c):
            launcher.wait()
        self.assertEqual(left_of(self.mark), [])
        self.assertRegex(a.text(), r"not going on from memory: rank 1 has no part of that of step \d+ of generation 0")
        self.assertRegex(a.text(), r"going on from \S+/checkpoint_\d+ at step \d+")
        made = losses([a])
        self.assertTrue(all(len(values) == 1 for values in made.values()), made)
        self.assertEqual(sorted(made), list(range(1, max(made) + 1)))


if __name__ == "__main__":
    unittest.main(verbosity=1)

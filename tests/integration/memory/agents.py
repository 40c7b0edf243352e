#!/usr/bin/env python3
"""In-memory checkpoints of jobs that accel-agents run: on one node by its shim, over two nodes by the coordinator. A rank is
killed and the job goes on from memory; nodes are taken away, and it goes on from the disk. Run by ctest."""
import atexit
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE))
import nodes  # noqa: E402

spec = importlib.util.spec_from_file_location("clusters", HERE.parent / "cluster/run.py")
clusters = importlib.util.module_from_spec(spec)
spec.loader.exec_module(clusters)



def for_everybody(program, *data):
    """The program and its data where the jobs' user can read them: the checkout may lie in a folder that only its owner
    enters. Then they, and those libraries that lie there, are linked into a folder of their own."""
    if subprocess.run(["test", "-x", program], **clusters.identity_of(clusters.ANN)).returncode == 0:
        return program, *data
    folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [path for path in re.findall(r"=> (/\S+)", listed) if not path.startswith(("/lib", "/usr"))]
    for path in [program, *data, *libraries]:
        try:
            os.link(os.path.realpath(path), folder / os.path.basename(path))
        except OSError:  # on another file system
            shutil.copy(path, folder)
    return [str(folder / os.path.basename(path)) for path in (program, *data)]


nodes.CHAR_GPT, TEXT = for_everybody(nodes.CHAR_GPT, clusters.one_agent.SOURCE / "examples/data/kjv.txt")

# Each agent is a node, but the kernel is one and would let ranks of both map one memory.
ON_ITS_NODE = ["/bin/sh", "-c", 'ACCEL_TEST_NODE=$ACCEL_NODE_ID LD_LIBRARY_PATH=$(dirname "$0") exec "$0" "$@"']
RESUMED = "going on from memory: step "  # rank 0 alone says it


class Agents(clusters.ClusterTest):
    def setUp(self):
        variables = unittest.mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
        variables.start()
        self.addCleanup(variables.stop)
        super().setUp()

    def submit(self, *options, save_steps=1_000_000, steps=nodes.STEPS, training=()):
        self.mark = uuid.uuid4().hex
        project = self.folder / f"project-{self.mark}"
        project.mkdir()
        os.chown(project, clusters.ANN, -1)
        self.project = project
        program, _, *arguments = nodes.char_gpt(project, "--data", TEXT, *training, save_steps=save_steps, steps=steps)
        with unittest.mock.patch.dict(os.environ, {"ACCEL_TEST_MARK": self.mark}):
            return self.follow("a", "run", *options, "--", *ON_ITS_NODE, program, *arguments)

    def follow(self, node, command, *arguments, user=clusters.ANN):
        """The text that a model writes need not be UTF-8."""
        follower = clusters.Program(f"accel {command} at {node}", self.command(node, command, *arguments), cwd="/", errors="replace",
                                    **clusters.identity_of(user))
        self.followers.append(follower)
        return follower

    def kill(self, rank):
        os.kill(nodes.ranks_of(self.mark, nodes.CHAR_GPT)[rank], signal.SIGKILL)

    def end(self, job):
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual([left for left in nodes.left_of(self.mark) if "accel" in left[1] or "char_gpt" in left[1]], [])
        return nodes.losses([job])

    def goes_on(self, *options, victims):
        expected = self.end(self.submit(*options))
        self.assertEqual(sorted(expected), list(range(1, nodes.STEPS + 1)))
        job = self.submit(*options)
        for times, (rank, step) in enumerate(victims, 1):
            job.wait_for(f"step {step} loss")
            self.kill(rank)
            job.wait_for(RESUMED, times)
            self.assertFalse((self.project / "checkpoints").exists(), "something was saved on disk")
        self.assertEqual(self.end(job), expected)
        resumed = [int(step) for step in re.findall(RESUMED + r"(\d+)", job.text())]
        for at, (_, step) in zip(resumed, victims):
            self.assertGreaterEqual(at, (step - 1) // nodes.EVERY * nodes.EVERY, job.text())

    def test_a_job_of_one_node_goes_on_from_the_memory_of_its_shim(self):
        self.start("a")
        self.goes_on("-n", 2, "--max_restarts", 2, victims=((1, 7), (0, 21)))

    def test_a_job_of_two_nodes_goes_on_from_the_memory_of_both_shims(self):
        self.start("a"), self.start("b")
        self.goes_on("--nnodes", 2, "-n", 2, "--max_restarts", 2, victims=((1, 7), (0, 21)))

    def test_a_job_outlives_its_agent_and_then_goes_on_from_memory(self):
        """The shim has the memory, whoever owns it."""
        agent = self.start("a")
        job = self.submit("-n", 2, "--max_restarts", 2, "--name", "j", steps=10_000)
        job.wait_for("step 5 loss")
        agent.end(signal.SIGKILL)
        del self.agents["a"]
        self.restart("a")
        self.kill(1)
        job.wait_for(RESUMED)
        self.assertEqual(self.accel("a", "stop", "j").returncode, 0)
        job.wait()
        self.assertEqual([left for left in nodes.left_of(self.mark) if "accel" in left[1] or "char_gpt" in left[1]], [])

    def restart(self, name):
        folder = self.folder / name
        agent = clusters.one_agent.Agent(folder, config=(folder / "agent.yaml").read_text())
        self.agents[name] = agent
        self.wait_for_line(agent, "has a session with the coordinator")

    def test_a_job_that_is_scaled_goes_on_from_the_disk_and_says_why(self):
        """No rank has failed, so it counts as no restart: what is on the disk stays all the same."""
        self.start("a"), self.start("b")
        job = self.submit("--nnodes", "1:2", "--nproc_per_node", 1, "--max_restarts", 2, "--name", "j", save_steps=5, steps=1000)
        job.wait_for("step 8 loss")
        done = self.accel("a", "scale", "j", "1:1")
        self.assertEqual(done.returncode, 0, done.stderr)
        job.wait_for("going on from ")
        job.wait_for("step 20 loss")
        self.assertEqual(self.accel("a", "stop", "j").returncode, 0)
        job.wait()
        self.assertRegex(job.text(), r"not going on from memory: that of step \d+ of generation 0 was saved by 2 ranks, now there are 1")
        self.assertRegex(job.text(), r"going on from \S+/checkpoint_\d+ at step \d+")

    def test_what_is_on_the_disk_outlives_all_nodes_that_knew_of_it(self):
        """The only node is drained, another one goes on: no restart, and nobody is left who has a note of the job's begin."""
        self.start("a")
        self.assertEqual(self.accel("a", "drain", user=None).returncode, 0)  # it has the coordinator
        self.start("b")
        job = self.submit("--nnodes", "1:2", "--nproc_per_node", 1, "--max_restarts", 2, "--name", "j", save_steps=5, steps=1000)
        job.wait_for("step 12 loss")
        self.assertEqual(self.nodes_of(self.job("a", "j")), ["b"])
        self.assertEqual(self.accel("b", "drain", "--stop", user=None).returncode, 0)
        self.start("c")
        job.wait_for("going on from ")
        self.assertEqual(self.accel("a", "stop", "j").returncode, 0)
        job.wait()
        self.assertRegex(job.text(), r"going on from \S+/checkpoint_\d+ at step \d+")


if __name__ == "__main__":
    unittest.main(verbosity=1)

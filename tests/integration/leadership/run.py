#!/usr/bin/env python3
"""Coordinators that outlive their process: by a journal, and by a real etcd that says which of several leads.

The nodes are real launchers with real shims and workers; the coordinators are processes of their own
(coordinator_program), which are killed, stopped and started again while the workers run. Run by ctest.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, BUILD, ETCD, MEMORY, PATIENCE, Program, free_address, start_etcd, write_token  # noqa: E402


class Leadership(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-leadership-", dir=MEMORY))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = write_token(self.folder)
        self.programs = []
        self.addCleanup(lambda: [program.close() for program in reversed(self.programs)])
        self.script = self.folder / "worker.sh"
        self.script.write_text('#!/bin/sh\necho "rank $RANK pid $$ restart $TORCHELASTIC_RESTART_COUNT"\n'
                               'while [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        self.script.chmod(0o755)

    def start(self, name, *command):
        program = Program(name, command)
        self.programs.append(program)
        return program

    def coordinator(self, name, address, *how):
        return self.start(name, BUILD / "tests/coordinator_program", self.token, address, *how)

    def nodes(self, endpoint, count=2):
        """A job of `count` launchers whose workers run."""
        nodes = [self.start(f"node-{i}", BIN / "accel-launch", "--nnodes", count, "--rdzv_endpoint", endpoint, "--node_id", f"node-{i}",
                            "--rdzv_token_file", self.token, "--rdzv_insecure", "--stop_grace", 5, self.script) for i in range(count)]
        for node in nodes:
            node.wait_for("restart 0")
        return nodes

    def assert_undisturbed(self, nodes):
        for node in nodes:
            self.assertIsNone(node.process.poll(), node.text())
            self.assertEqual(node.count("rank "), 1, node.text())
            pid = int(next(line for line in node.lines if line.startswith("rank ")).split()[3])
            self.assertTrue(pathlib.Path(f"/proc/{pid}").exists(), node.text())

    def finish(self, nodes):
        self.assert_undisturbed(nodes)
        (self.folder / "worker.sh.stop").touch()
        for node in nodes:
            self.assertEqual(node.wait(), 0, "\n".join(program.text() for program in self.programs))
            self.assertEqual(node.count("restart"), 1, node.text())


class Journal(Leadership):
    def test_fault_35_a_killed_coordinator_goes_on_from_its_journal_and_workers_are_not_disturbed(self):
        address = free_address()
        first = self.coordinator("first", address, "journal", self.folder)
        first.wait_for("serves")
        nodes = self.nodes(address)
        for epoch in (2, 3):
            first.close()
            first = self.coordinator(f"epoch-{epoch}", address, "journal", self.folder)
            first.wait_for(f"epoch {epoch} with 1 jobs")
            for node in range(2):
                first.wait_for(f"node-{node} connected")
            self.assert_undisturbed(nodes)
        self.finish(nodes)

    def test_a_rank_that_fails_after_a_take_over_restarts_the_job_within_what_is_left_of_the_budget(self):
        address = free_address()
        self.script.write_text('#!/bin/sh\necho "rank $RANK restart $TORCHELASTIC_RESTART_COUNT"\n'
                               '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0\nwhile [ ! -e "$0.stop" ]; do sleep 0.05; done\nexit 3\n')
        first = self.coordinator("first", address, "journal", self.folder)
        first.wait_for("serves")
        node = self.start("node-0", BIN / "accel-launch", "--nnodes", 1, "--rdzv_endpoint", address, "--node_id", "node-0",
                          "--rdzv_token_file", self.token, "--rdzv_insecure", "--max_restarts", 1, self.script)
        node.wait_for("restart 0")
        first.close()
        second = self.coordinator("second", address, "journal", self.folder)
        second.wait_for("node-0 connected")
        (self.folder / "worker.sh.stop").touch()
        node.wait_for("restart 1")
        self.assertEqual(node.wait(), 0, node.text())

    def test_a_worker_that_ends_while_nobody_coordinates_is_told_to_the_next_one(self):
        address = free_address()
        first = self.coordinator("first", address, "journal", self.folder)
        first.wait_for("serves")
        nodes = self.nodes(address)
        first.close()
        (self.folder / "worker.sh.stop").touch()
        for node in nodes:
            node.wait_for("is gone")
        second = self.coordinator("second", address, "journal", self.folder)
        second.wait_for("epoch 2 with 1 jobs")
        for node in nodes:
            self.assertEqual(node.wait(), 0, "\n".join(program.text() for program in self.programs))


@unittest.skipIf(ETCD is None, "etcd is not installed (Debian's etcd-server)")
class Etcd(Leadership):
    def setUp(self):
        super().setUp()
        self.etcd_address = free_address()
        self.etcd = self.start_etcd()

    def start_etcd(self):
        self.programs.append(start_etcd(self.folder / "etcd", self.etcd_address))
        return self.programs[-1]

    def host(self, name, address=None):
        host = self.coordinator(name, address or free_address(), "etcd", "test", self.etcd_address)
        host.address = host.process.args[2]
        return host

    def hosts(self):
        """One that leads, and one that follows it, by way of which nodes find it."""
        leader = self.host("leader")
        leader.wait_for("with 0 jobs")
        follower = self.host("follower")
        follower.wait_for(f"follows {leader.address}")
        follower.wait_for("serves")
        return leader, follower

    def test_fault_36_the_leader_is_killed_and_another_one_goes_on_with_the_job(self):
        leader, follower = self.hosts()
        nodes = self.nodes(follower.address)
        killed = time.monotonic()
        leader.process.kill()
        took = follower.wait_for("with 1 jobs") - killed
        for node in range(2):
            follower.wait_for(f"node-{node} connected")
        print(f"another leads after {took:.1f} s (the lease has 6 s)", file=sys.stderr)
        self.finish(nodes)

    def test_a_leader_that_ends_gives_up_the_key_at_once_and_the_job_goes_on(self):
        leader, follower = self.hosts()
        nodes = self.nodes(follower.address)
        leader.process.send_signal(signal.SIGTERM)
        follower.wait_for("with 1 jobs")
        self.assertEqual(leader.wait(), 0, leader.text())
        self.finish(nodes)

    def test_fault_41_a_leader_that_was_stopped_leads_no_more_when_it_goes_on(self):
        leader, follower = self.hosts()
        nodes = self.nodes(follower.address)
        leader.process.send_signal(signal.SIGSTOP)
        follower.wait_for("with 1 jobs")
        leader.process.send_signal(signal.SIGCONT)
        leader.wait_for("leads no more")
        leader.wait_for(f"follows {follower.address}")
        self.assertEqual(leader.count("with"), 1, leader.text())
        self.finish(nodes)

    def test_etcd_is_killed_and_comes_back_and_the_job_goes_on(self):
        leader, follower = self.hosts()
        nodes = self.nodes(follower.address)
        self.etcd.close()
        leader.wait_for("leads no more")
        self.assert_undisturbed(nodes)
        self.etcd = self.start_etcd()
        deadline = time.monotonic() + PATIENCE
        while leader.count("with 1 jobs") + follower.count("with 1 jobs") == 0:
            self.assertLess(time.monotonic(), deadline, leader.text() + follower.text())
            time.sleep(0.02)
        self.finish(nodes)

    def test_a_leader_whose_key_an_operator_removes_steps_down_before_it_writes(self):
        leader, follower = self.hosts()
        nodes = self.nodes(follower.address)
        subprocess.run(["etcdctl", "--endpoints", self.etcd_address, "del", "/accel/test/leader"], check=True, capture_output=True,
                       env={**os.environ, "ETCDCTL_API": "3"}) if shutil.which("etcdctl") else self.skipTest("etcdctl is not installed")
        leader.wait_for("leads no more")
        self.finish(nodes)

    def test_etcd_that_is_away_at_the_start_is_named(self):
        self.etcd.close()
        host = self.host("alone")
        self.assertEqual(host.wait(), 69, host.text())
        host.wait_for("[etcd.unreachable]")
        host.wait_for(self.etcd_address)


if __name__ == "__main__":
    unittest.main(verbosity=1)

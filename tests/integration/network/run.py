#!/usr/bin/env python3
"""Links that go down and come back, one way or both, between hosts that are network namespaces (faults of docs/reference/faults.md).

Every host runs accel-launch; the first one hosts the coordinator. Workers write the machine's uptime to a file of their
own, so that what two hosts did can be put in order: it is one machine with one clock. Run by ctest.
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
from cluster import Network, require_namespaces  # noqa: E402
from programs import BUILD, ETCD, MEMORY, eventually, issue_certificate, launch, start_etcd, write_token  # noqa: E402

# Says who it is, then writes the uptime until the file "stop" is there.
WORKER = """#!/bin/sh
echo "rank $RANK of $WORLD_SIZE node $ACCEL_NODE_ID restart $TORCHELASTIC_RESTART_COUNT"
cd "$(dirname "$0")"
while [ ! -e stop ]; do
  read -r up rest < /proc/uptime
  echo "$up" >> "life.$ACCEL_NODE_ID.$TORCHELASTIC_RESTART_COUNT"
  sleep 0.05
done
"""


class Hosts(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-network-", dir=MEMORY))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = write_token(self.folder)
        self.script = self.folder / "worker.sh"
        self.script.write_text(WORKER)
        self.script.chmod(0o755)
        self.network = Network("abc")
        self.addCleanup(self.network.close)
        self.endpoint = self.network.address("a") + ":29400"
        self.launchers = []
        self.addCleanup(lambda: [launcher.close() for launcher in reversed(self.launchers)])

    def launch(self, name, *more, nnodes="2:3", env=None):
        launcher = launch(name, ["--nnodes", nnodes, "--rdzv_endpoint", self.endpoint, "--node_id", name, "--rdzv_token_file", self.token,
                                 "--rdzv_tls_dir", issue_certificate(self.folder / "ca", "node", name), "--nproc_per_node", 1,
                                 "--max_restarts", 5, "--stop_grace", 2, *more, self.script],
                          prefix=self.network.command(name), env={**os.environ, **(env or {})})
        self.launchers.append(launcher)
        return launcher

    def launch_all(self, *more):
        launchers = [self.launch(name, *more, nnodes="2:3") for name in "abc"]
        for launcher in launchers:
            launcher.wait_for(" of 3 ")
        return launchers

    def life(self, name, restart):
        """The uptimes at which the worker of that node and generation was alive."""
        path = self.folder / f"life.{name}.{restart}"
        lines = path.read_text().split("\n") if path.exists() else []
        return [float(line) for line in lines[:-1]]

    def ages(self, name, restart):
        """Whether that worker still lives: it writes on."""
        before = len(self.life(name, restart))
        time.sleep(0.5)
        return len(self.life(name, restart)) > before

    def stop_all(self, *launchers):
        (self.folder / "stop").touch()
        for launcher in launchers:
            self.assertEqual(launcher.wait(), 0, launcher.text())

    # ---- power loss and partitions ----

    def test_fault37_a_host_without_power_is_lost_and_the_others_go_on(self):
        a, b, c = self.launch_all()
        cut_at = time.monotonic()
        self.network.cut("c")
        lost_at = a.wait_for("node c: no beat for")
        a.wait_for(" of 2 node a restart 1")
        b.wait_for(" of 2 node b restart 1")
        print(f"seen after {lost_at - cut_at:.1f} s")
        c.close()
        self.stop_all(a, b)

    def test_fault38_with_hard_fencing_the_minority_is_dead_before_the_majority_starts(self):
        a, b, c = self.launch_all("--fencing", "hard", "--lease", 5)
        self.network.cut("c")
        a.wait_for(" of 2 node a restart 1")
        b.wait_for(" of 2 node b restart 1")
        eventually(lambda: self.life("a", 1) and self.life("b", 1), "signs of life of the next generation")
        self.assertLess(self.life("c", 0)[-1], min(self.life("a", 1)[0], self.life("b", 1)[0]))
        self.assertFalse(self.ages("c", 0))
        # It cannot start anything of its own either.
        self.assertFalse(self.life("c", 1))
        self.assertEqual(len([line for line in c.lines if line.startswith("rank ")]), 1, c.text())
        c.close()
        self.stop_all(a, b)

    def test_fault38_with_hard_fencing_the_workers_of_a_stopped_launcher_are_dead_first(self):
        a, b, c = self.launch_all("--fencing", "hard", "--lease", 5)
        c.process.send_signal(signal.SIGSTOP)
        a.wait_for(" of 2 node a restart 1")
        eventually(lambda: self.life("a", 1), "signs of life of the next generation")
        self.assertLess(self.life("c", 0)[-1], self.life("a", 1)[0])
        self.assertIn(") T ", pathlib.Path(f"/proc/{c.process.pid}/stat").read_text())
        # Awake, it finds that it was fenced, and waits for the next generation by itself.
        c.process.send_signal(signal.SIGCONT)
        c.wait_for("this node takes part from")
        self.stop_all(a, b, c)

    def test_fault39_a_partition_heals_and_the_node_comes_back_by_itself(self):
        a, b, c = self.launch_all()
        self.network.cut("c")
        a.wait_for("node c: no beat for")
        a.wait_for(" of 2 node a restart 1")
        self.network.mend("c")
        c.wait_for("this node takes part from")
        self.assertFalse(self.ages("c", 0))
        # With the next change it takes part.
        b.process.send_signal(signal.SIGTERM)
        c.wait_for(" of 2 node c")
        a.wait_for(" of 2 node a", count=2)
        self.stop_all(a, c)

    def test_fault40_a_node_that_is_heard_by_nobody_is_lost_although_it_hears(self):
        a, b, c = self.launch_all("--fencing", "hard", "--lease", 5)
        self.network.lose_what_goes("c", "a")
        a.wait_for(" of 2 node a restart 1")
        eventually(lambda: self.life("a", 1), "signs of life of the next generation")
        self.assertLess(self.life("c", 0)[-1], self.life("a", 1)[0])
        self.network.lose_nothing("c", "a")
        c.wait_for("this node takes part from")
        self.stop_all(a, b, c)

    def test_fault40_a_node_that_hears_nobody_is_dead_in_time_although_it_is_heard(self):
        a, b, c = self.launch_all("--fencing", "hard", "--lease", 5)
        self.network.lose_what_goes("a", "c")
        a.wait_for(" of 2 node a restart 1")
        eventually(lambda: self.life("a", 1), "signs of life of the next generation")
        self.assertLess(self.life("c", 0)[-1], self.life("a", 1)[0])
        self.network.lose_nothing("a", "c")
        c.wait_for("this node takes part from")
        self.stop_all(a, b, c)

    def test_fault44_a_host_whose_clock_is_off_is_named_and_nothing_else_comes_of_it(self):
        clock = self.folder / "clock"
        clock.write_text("86400")
        a = self.launch("a", nnodes="2")
        b = self.launch("b", nnodes="2", env={"LD_PRELOAD": str(BUILD / "tests/libjumping_clock.so"), "ACCEL_TEST_CLOCK": str(clock)})
        a.wait_for("node b: its clock is 86")
        b.wait_for(" of 2 node b restart 0")
        clock.write_text("00000")
        a.wait_for("node b: its clock agrees")
        self.assertTrue(self.ages("a", 0) and self.ages("b", 0))
        self.stop_all(a, b)

    def connections(self, name, state):
        """The ports from which that host has connections in this state to the endpoint."""
        listed = subprocess.run([*self.network.command(name), "ss", "-Htn", "state", state, "dst", self.endpoint], check=True,
                                capture_output=True, text=True).stdout
        return {line.split()[2].rsplit(":", 1)[1] for line in listed.splitlines()}

    def test_fault49_an_endpoint_that_swallows_packets_is_named_and_tried_again(self):
        """Where a port is down the kernel soon knows of no way; here packets leave, and nothing says that they vanish: an attempt that
        nobody gives up would be the only one within the join limit."""
        self.network.lose_what_goes("b", "a")
        b = self.launch("b", "--rdzv_join_timeout", 12)
        tries = set()
        while not b.is_over:
            tries |= self.connections("b", "syn-sent")
            time.sleep(0.05)
        self.assertEqual(b.wait(), 110, b.text())
        self.assertIn("rendezvous.timeout", b.text())
        self.assertIn(self.endpoint, b.text())
        self.assertGreaterEqual(len(tries), 2)

    def test_fault49_a_connection_whose_packets_vanish_is_given_up(self):
        """The kernel alone keeps it for a quarter of an hour, longer than anybody waits here."""
        a, b, c = self.launch_all()
        before = self.connections("c", "established")
        self.assertTrue(before)
        self.network.lose_what_goes("c", "a")
        a.wait_for(" of 2 node a restart 1")
        eventually(lambda: not before & self.connections("c", "established"), "the end of the connection")
        c.close()
        self.stop_all(a, b)

    def test_a_line_of_torchrun_meets_beyond_loopback_without_keys_and_says_so(self):
        (self.folder / "stop").touch()  # workers have nothing to do
        for name in "ab":
            self.launchers.append(launch(name, ["--nnodes", "2:3", "--rdzv_backend", "c10d", "--rdzv_endpoint", self.endpoint,
                                                "--node_id", name, self.script], prefix=self.network.command(name)))
        a, b = self.launchers
        self.assertEqual((a.wait(), b.wait()), (0, 0), a.text() + b.text())
        a.wait_for(f"the nodes meet at {self.endpoint}; this port has no authentication, as with torchrun")
        a.wait_for(" of 2 node a"), b.wait_for(" of 2 node b")

    @unittest.skipIf(ETCD is None, "etcd is not installed (Debian's etcd-server)")
    def test_fault37_with_etcd_the_one_that_hosts_is_lost_and_comes_back_under_the_next_one(self):
        self.network.add("etcd", 9)
        address = self.network.address("etcd") + ":2379"
        etcd = start_etcd(self.folder / "etcd", address, self.network.command("etcd"))
        self.addCleanup(etcd.close)
        for name in "abc":
            self.launchers.append(launch(name, ["--nnodes", "2:3", "--rdzv_backend", "etcd", "--rdzv_endpoint", address, "--node_id", name,
                                                "--max_restarts", 5, "--stop_grace", 2, self.script], prefix=self.network.command(name)))
        for node in self.launchers:
            node.wait_for(" of 3 ")
        host = next(node for node in self.launchers if node.count("running 1: 3 nodes"))
        others = [node for node in self.launchers if node is not host]
        self.network.cut(host.name)
        for node in others:
            node.wait_for(f" of 2 node {node.name} restart 1")
        self.network.mend(host.name)
        host.wait_for("this node takes part from the next restart")
        self.stop_all(*self.launchers)


if __name__ == "__main__":
    require_namespaces()
    unittest.main(verbosity=1)

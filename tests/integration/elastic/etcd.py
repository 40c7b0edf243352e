#!/usr/bin/env python3
"""accel-torchrun --nnodes MIN:MAX with etcd: what becomes of a job whose hosting launcher goes.

A real etcd; each "machine" is a launcher of its own on this one. Run by ctest.
"""
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
from programs import BIN, ETCD, MEMORY, PATIENCE, Program, free_address, start_etcd, write_token  # noqa: E402

MOST = ("--max-restarts", 3)
KEY = "/accel-launch/night/main"
LOST = 111  # rendezvous.coordinator_lost
# The third node of a busy machine may need more than the 3 s that a job waits for it; those that go on as two wait as long.
LAST_CALL = ("--rdzv-conf", "last_call_timeout=10")


@unittest.skipIf(ETCD is None, "etcd is not installed (Debian's etcd-server)")
class Host(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-elastic-etcd-", dir=MEMORY))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.address = free_address()
        self.etcd = start_etcd(self.folder / "data", self.address)
        self.addCleanup(lambda: self.etcd.close())
        self.nodes = []
        self.addCleanup(lambda: [node.close() for node in self.nodes])
        self.stop = self.folder / "stop"

    def node(self, number, *more, trap=":"):
        script = (f'{trap}; echo "rank $RANK of $WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT generation $ACCEL_GENERATION"; '
                  f"while [ ! -e {self.stop} ]; do sleep 0.05; done")
        node = Program("node", [BIN / "accel-torchrun", "--nnodes", number, "--rdzv-backend", "etcd", "--rdzv-endpoint", self.address,
                                "--rdzv-id", "night", *LAST_CALL, *more, "--no-python", "/bin/sh", "-c", script])
        self.nodes.append(node)
        return node

    def key(self):
        """What stands at the job's key."""
        return Gateway(self.address).pair(KEY)

    def wait_for_key(self, host):
        end = time.monotonic() + PATIENCE
        while not self.key():
            self.assertIsNone(host.process.poll(), host.text())
            self.assertLess(time.monotonic(), end, host.text())
            time.sleep(0.05)

    def hosted(self, count, number, *more, trap=":"):
        """That many nodes whose job runs: the one that hosts, and the others."""
        host = self.node(number, *more, trap=trap)
        self.wait_for_key(host)
        others = [self.node(number, *more, trap=trap) for _ in range(count - 1)]
        for node in [host, *others]:
            node.wait_for(f"of {count} restart 0")
        return host, others

    def end(self, *statuses):
        self.stop.touch()
        text = "\n".join(node.text() for node in self.nodes)
        self.assertEqual([node.wait() for node in self.nodes], list(statuses), text)

    def test_the_others_go_on_without_a_host_that_is_killed(self):
        host, others = self.hosted(3, "2:3", *MOST)
        host.process.kill()
        for node in others:
            node.wait_for("of 2 restart 1 generation 2")
        self.end(-signal.SIGKILL, 0, 0)
        self.assertEqual(sorted(line[:6] for node in others for line in node.lines if "restart 1" in line), ["rank 0", "rank 1"])
        self.assertIsNone(self.key())

    def test_hosts_may_be_killed_one_after_another_and_come_back(self):
        first, (second, third) = self.hosted(3, "2:3", *MOST)
        first.process.kill()
        hosts = [second, third]
        for node in hosts:
            node.wait_for("of 2 restart 1 generation 2")
        again = self.node("2:3", *MOST)
        again.wait_for("takes part from the next restart")
        host = next(node for node in hosts if node.count("running 2: 2 nodes") > 0)
        other = next(node for node in hosts if node is not host)
        host.process.kill()
        for node in (other, again):
            node.wait_for("of 2 restart 2 generation 3")
        self.end(-signal.SIGKILL, *(-signal.SIGKILL if node is host else 0 for node in hosts), 0)

    def test_a_host_that_is_told_to_stop_costs_the_job_no_restart(self):
        host, others = self.hosted(3, "2:3", "--max-restarts", 0)
        host.process.terminate()
        for node in others:
            node.wait_for("of 2 restart 0 generation 2")
        self.end(128 + signal.SIGTERM, 0, 0)

    def test_workers_that_save_and_end_well_when_they_are_stopped_have_not_done_the_job(self):
        host, others = self.hosted(3, "2:3", *MOST, trap="trap 'exit 0' TERM")
        host.process.terminate()
        for node in others:
            node.wait_for("of 2 restart 0 generation 2")
        self.end(128 + signal.SIGTERM, 0, 0)

    def test_with_hard_fencing_the_loss_of_the_host_is_the_end(self):
        # Nobody could say that its workers are dead.
        host, others = self.hosted(3, "2:3", *MOST, "--fencing", "hard", "--rdzv-insecure", "--rdzv-token-file", write_token(self.folder))
        host.process.kill()
        for node in others:
            node.wait_for("[rendezvous.coordinator_lost]")
        self.end(-signal.SIGKILL, LOST, LOST)

    def test_without_a_restart_left_the_loss_of_the_host_is_the_end(self):
        host, others = self.hosted(3, "2:3", "--max-restarts", 0)
        host.process.kill()
        for node in others:
            node.wait_for("is gone, and no restart is allowed")
        self.end(-signal.SIGKILL, LOST, LOST)

    def test_a_key_that_is_taken_away_comes_back(self):
        host, others = self.hosted(2, "2:3", *MOST)
        place = self.key()
        Gateway(self.address).ask("kv/deleterange", key=place["key"])
        self.wait_for_key(host)
        self.assertEqual(self.key()["value"], place["value"])
        self.node("2:3", *MOST).wait_for("takes part from the next restart")
        self.end(0, 0, 0)

    def test_etcd_may_restart(self):
        host, others = self.hosted(3, "2:3", *MOST)
        self.etcd.close()
        self.etcd = start_etcd(self.folder / "data", self.address)
        host.process.kill()
        for node in others:
            node.wait_for("of 2 restart 1 generation 2")
        self.end(-signal.SIGKILL, 0, 0)

    def test_a_job_runs_on_without_etcd(self):
        self.hosted(2, "2:3", *MOST)
        self.etcd.close()
        self.end(0, 0)

    def test_without_etcd_the_loss_of_the_host_is_the_end(self):
        host, others = self.hosted(3, "2:3", *MOST, "--rdzv-conf", "last_call_timeout=10,join_timeout=60")
        self.etcd.close()
        host.process.kill()
        for node in others:
            node.wait_for("etcd does not answer at " + self.address)
        self.end(-signal.SIGKILL, 69, 69)

    def test_a_host_that_stood_still_meets_the_others_under_the_new_one(self):
        host, others = self.hosted(3, "2:3", *MOST)
        os.kill(host.process.pid, signal.SIGSTOP)
        for node in others:
            node.wait_for("of 2 restart 1 generation 2")
        os.kill(host.process.pid, signal.SIGCONT)
        host.wait_for("takes part from the next restart")
        self.end(0, 0, 0)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""accel-launch in two network namespaces, without a daemon: torch.distributed over both, and what a broken link looks like."""
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from programs import BIN, ETCD, MEMORY, Program, start_etcd  # noqa: E402
from two_nodes import ADDRESSES, JOB, PEER, Network, entering, ip, require_namespaces  # noqa: E402

PORT = 29677
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "veth0", "OMP_NUM_THREADS": "1",
               "PATH": os.path.dirname(PEER) + ":" + os.environ["PATH"]}


class StaticMachines(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)
        self.machines = []
        self.addCleanup(lambda: [machine.close() for machine in self.machines])

    def start(self, index, *command, program="accel-launch", token=""):
        machine = Program(f"machine {index}", [*entering(self.network.names[index]), BIN / program, *command],
                          env={**ENVIRONMENT, "ACCEL_JOB_TOKEN": token})
        self.machines.append(machine)
        return machine

    def accelerate(self, index, processes, *command, address=ADDRESSES[0], token=""):
        return self.start(index, "--cpu", "--num_machines", 2, "--machine_rank", index, "--main_process_ip", address,
                          "--main_process_port", PORT, "--num_processes", processes, *command, token=token)

    def results(self):
        statuses = [machine.wait() for machine in self.machines]
        for machine in self.machines:
            machine.close()
        text = "\n".join(machine.text() for machine in self.machines)
        self.assertEqual(statuses, [0, 0], text)
        lines = [line for machine in self.machines for line in machine.lines if line.startswith("{")]
        return sorted((json.loads(line) for line in lines), key=lambda result: result["rank"])

    def test_torch_distributed_over_two_machines(self):
        for index in (1, 0):
            self.accelerate(index, 4, JOB)
        results = self.results()
        self.assertEqual([(one["rank"], one["world"], one["sum"]) for one in results], [(rank, 4, 10.0) for rank in range(4)])
        self.assertIn(f"machine 0 listens on {ADDRESSES[0]}:{PORT}", self.machines[1].text())

    def test_torchrun_with_another_number_on_each_node_and_a_restart(self):
        for index, number in ((0, 1), (1, 2)):
            self.start(index, "--nnodes", 2, "--node-rank", index, "--master-addr", ADDRESSES[0], "--master-port", PORT,
                       "--nproc-per-node", number, "--max-restarts", 1, JOB, "--fail-first", program="accel-torchrun")
        results = self.results()
        self.assertEqual([(one["rank"], one["restarts"], one["sum"]) for one in results], [(rank, 1, 6.0) for rank in range(3)])

    def test_c10d_makes_the_machine_with_the_address_the_first(self):
        for index in (1, 0):
            self.start(index, "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}",
                       "--no-python", "/bin/sh", "-c", 'echo "{\\"rank\\": $RANK, \\"group\\": $GROUP_RANK}"', program="accel-torchrun")
        self.assertEqual(self.results(), [{"rank": 0, "group": 0}, {"rank": 1, "group": 1}])
        self.assertIn('"rank": 0', self.machines[1].text())

    @unittest.skipIf(ETCD is None, "etcd is not installed (Debian's etcd-server)")
    def test_etcd_says_which_machine_is_the_first_and_where(self):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            etcd = start_etcd(folder, f"{ADDRESSES[0]}:2379", entering(self.network.names[0]))
            self.addCleanup(etcd.close)
            for index in (1, 0):
                self.start(index, "--nnodes", 2, "--rdzv-backend", "etcd", "--rdzv-endpoint", f"{ADDRESSES[0]}:2379", "--rdzv-id", "night",
                           JOB, program="accel-torchrun")
                if index == 1:
                    self.machines[0].wait_for(f"machine 0 listens on {ADDRESSES[1]}:")
            self.assertEqual([(one["rank"], one["world"], one["sum"]) for one in self.results()], [(0, 2, 3.0), (1, 2, 3.0)])
            self.assertRegex(self.machines[1].text(), rf"joins machine 0, .* \({ADDRESSES[1]}:\d+\)")

    def test_a_link_that_goes_down_is_noticed_on_both_within_seconds(self):
        for index in (0, 1):
            self.accelerate(index, 2, "--no_python", "/bin/sh", "-c", "echo up; exec sleep 60")
        for machine in self.machines:
            machine.wait_for("up")
        ip("link", "set", "veth0", "down", within=entering(self.network.names[1]))
        cut = time.monotonic()
        self.assertEqual([machine.wait() for machine in self.machines], [71, 111])
        self.assertLess(time.monotonic() - cut, 15)
        self.assertIn(f"{ADDRESSES[1]}) does not answer any more", self.machines[0].text())
        self.assertIn(f"machine 0 at {ADDRESSES[0]}:{PORT} is gone", self.machines[1].text())

    def test_machine_rank_0_on_the_wrong_machine_is_given_twice(self):
        a = self.accelerate(0, 2, "--no_python", "/bin/true")
        a.wait_for("machine 0 listens")
        b = self.start(1, "--cpu", "--num_machines", 2, "--machine_rank", 0, "--main_process_ip", ADDRESSES[0],
                       "--main_process_port", PORT, "--num_processes", 2, "--no_python", "/bin/true")
        self.assertEqual(b.wait(), 2, b.text())
        for machine in self.machines:
            machine.wait_for("machine rank 0 was given twice")

    def test_machine_rank_0_on_the_wrong_machine_that_comes_first_is_given_twice(self):
        wrong = self.start(1, "--cpu", "--num_machines", 2, "--machine_rank", 0, "--main_process_ip", ADDRESSES[0],
                           "--main_process_port", PORT, "--num_processes", 2, "--no_python", "/bin/true")
        wrong.wait_for("is no address of this machine")
        self.accelerate(0, 2, "--no_python", "/bin/true")
        began = time.monotonic()
        self.assertEqual(wrong.wait(), 2, wrong.text())
        for machine in self.machines:
            machine.wait_for("machine rank 0 was given twice")
        self.assertLess(time.monotonic() - began, 10)
        for address in ADDRESSES[:2]:
            self.assertIn(f" ({address})", wrong.text())

    def test_a_token_is_asked_of_the_other_machine_0_too(self):
        wrong = self.start(1, "--cpu", "--num_machines", 2, "--machine_rank", 0, "--main_process_ip", ADDRESSES[0],
                           "--main_process_port", PORT, "--num_processes", 2, "--no_python", "/bin/true", token="0123456789abcdef")
        wrong.wait_for("is no address of this machine")
        right = self.accelerate(0, 2, "--no_python", "/bin/true", token="fedcba9876543210")
        right.wait_for("launchers show that they know the job's token")
        self.assertEqual(wrong.wait(), 77, wrong.text())
        wrong.wait_for("machine 0 has another token of the job than this machine")
        self.accelerate(1, 2, "--no_python", "/bin/true", token="fedcba9876543210")
        self.assertEqual([machine.wait() for machine in self.machines], [77, 0, 0], right.text())

    def test_torch_distributed_with_a_token(self):
        for index in (1, 0):
            self.accelerate(index, 2, JOB, token="fedcba9876543210")
        self.assertEqual([(one["rank"], one["world"], one["sum"]) for one in self.results()], [(0, 2, 3.0), (1, 2, 3.0)])

    def test_an_address_without_a_way(self):
        machine = self.accelerate(1, 2, "--rdzv_conf", "join_timeout=1", "--no_python", "/bin/true", address="10.99.99.99")
        self.assertEqual(machine.wait(), 111, machine.text())
        machine.wait_for("machine 0 could not be reached at 10.99.99.99")
        machine.wait_for("no route (Network is unreachable (errno 101))")


if __name__ == "__main__":
    require_namespaces()
    unittest.main(verbosity=2)

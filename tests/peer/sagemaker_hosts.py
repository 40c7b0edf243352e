#!/usr/bin/env python3
"""Two containers of a training job of SageMaker are two machines: ranks of Accelerate train over both.

A container here has a network and a name of its own, and an /etc/hosts with the names of both, as those of SageMaker.
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from programs import BIN, SOURCE, Program, cannot_mount  # noqa: E402
from two_nodes import ADDRESSES, PEER, Network, entering, require_namespaces  # noqa: E402

HOSTS = ["algo-1", "algo-2"]
JOB = SOURCE / "tests/peer/scripts/accelerate_job.py"
# $1: a folder with `hosts` and `resourceconfig.json`. The machine's own /etc and /opt stay as they are.
ENTER = """set -e
mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs none /opt
mkdir -p /opt/ml/input/config
cp "$1/resourceconfig.json" /opt/ml/input/config
hostname "$2"
shift 2
exec "$@"
"""


class Containers(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        names = "".join(f"{address} {host}\n" for address, host in zip(ADDRESSES, HOSTS))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
        self.containers = []
        self.addCleanup(lambda: [container.close() for container in self.containers])

    def start(self, index, variables, *command):
        (self.folder / "resourceconfig.json").write_text(
            json.dumps({"current_host": HOSTS[index], "hosts": HOSTS, "network_interface_name": "veth0"}))
        environment = {"PATH": os.path.dirname(PEER) + ":" + os.environ["PATH"], "HOME": str(self.folder),
                       "OMP_NUM_THREADS": "1", **variables}
        container = Program(HOSTS[index], [*entering(self.network.names[index]), "unshare", "--mount", "--uts", "/bin/sh", "-c",
                                           ENTER, "container", self.folder, HOSTS[index], *command], env=environment)
        self.containers.append(container)
        container.wait_for("in the container")

    def start_both(self, program, *command):
        """The second container has the toolkit's variables, the first one the file alone."""
        of_toolkit = {"SM_HOSTS": json.dumps(HOSTS), "SM_CURRENT_HOST": HOSTS[1], "SM_NUM_GPUS": "0",
                      "SM_NETWORK_INTERFACE_NAME": "veth0"}
        for index, variables in ((1, of_toolkit), (0, {})):
            self.start(index, variables, "/bin/sh", "-c", 'echo "in the container"; exec "$@"', "sh", BIN / program, *command)

    def lines(self):
        statuses = [container.wait() for container in self.containers]
        for container in self.containers:
            container.close()
        self.assertEqual(statuses, [0, 0], "\n".join(container.text() for container in self.containers))
        return [line for container in self.containers for line in container.lines]

    def test_ranks_of_accelerate_train_over_both(self):
        self.start_both("accel-launch", JOB)
        results = [json.loads(line) for line in self.lines() if line.startswith("{")]
        self.assertEqual(sorted(one["rank"] for one in results), [0, 1])
        for one in results:
            self.assertEqual((one["world"], one["ranks"], one["equal_weights"]), (2, [0, 1], True))
            self.assertLess(one["last_loss"], one["first_loss"])

    def test_accel_torchrun_counts_the_workers_of_each(self):
        self.start_both("accel-torchrun", "--nproc_per_node", 2, "--no_python", "/bin/sh", "-c",
                        'echo "rank $RANK of $WORLD_SIZE on $GROUP_RANK at $MASTER_ADDR $(hostname)"')
        said = sorted(line for line in self.lines() if line.startswith("rank "))
        self.assertEqual(said, [f"rank {rank} of 4 on {rank // 2} at algo-1 {HOSTS[rank // 2]}" for rank in range(4)])


if __name__ == "__main__":
    require_namespaces()
    if cannot_mount():
        print(f"skipped: {cannot_mount()}")
        sys.exit(77)
    unittest.main()

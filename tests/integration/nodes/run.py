#!/usr/bin/env python3
"""char_gpt on two hosts that are network namespaces, with 2 ranks each: as copies, divided in each node, and divided over
both. Run by ctest."""
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
from cluster import Network, require_namespaces  # noqa: E402
from programs import BUILD, issue_certificate, launch, write_token  # noqa: E402

STEPS = 8
# Gradients are added as (r0 + r1) + (r2 + r3) here and as ((r0 + r1) + r2) + r3 on one node: a relative error of some 2^-24 in
# each, which 8 steps of AdamW at a learning rate of at most 1e-3 pass on.
TOLERANCE = 1e-3
# The norm of shards adds its squares in another order than that of copies, so with clipping the last bits may differ.
UNCLIPPED = ("--max_grad_norm", 0)


class Nodes(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-nodes-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = write_token(self.folder)
        self.network = Network("ab")
        self.addCleanup(self.network.close)
        self.launchers = []
        self.addCleanup(lambda: [launcher.close() for launcher in reversed(self.launchers)])

    def start(self, name, launch_options, training_options, steps=STEPS, batch_size=4, **options):
        launcher = launch(name, ["--cpu", *launch_options, BUILD / "examples/char_gpt", "--", "--batch_size", batch_size,
                                 "--save_steps", 2, "--max_steps", steps, *training_options], errors="replace", **options)
        self.launchers.append(launcher)
        return launcher

    def losses(self, launcher):
        return {int(step): loss for step, loss in re.findall(r"step (\d+) loss (\S+)$", launcher.text(), re.M)}

    def on_one_node(self):
        launcher = self.start("one", ["--num_processes", 4], ["--project_dir", self.folder / "one", *UNCLIPPED],
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(launcher.wait(), 0, launcher.text())
        return self.losses(launcher)

    def on_two_nodes(self, job, *training_options, **size):
        """The losses, which both hosts say alike."""
        launchers = [
            self.start(name, ["--nnodes", 2, "--num_processes", 4, "--node_id", name, "--rdzv_token_file", self.token,
                              "--rdzv_endpoint", self.network.address("a") + ":29400", "--rdzv_tls_dir",
                              issue_certificate(self.folder / "ca", "node", name)],
                       ["--project_dir", self.folder / job, *training_options], prefix=self.network.command(name),
                       # The kernel is one, and would let ranks of both hosts map one memory.
                       env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "veth0", "ACCEL_TEST_NODE": name},
                       **size)
            for name in "ab"]
        for launcher in launchers:
            self.assertEqual(launcher.wait(), 0, launcher.text())
        told = [self.losses(launcher) for launcher in launchers]
        self.assertEqual(told[0], told[1])
        return told[0]

    def test_two_nodes_train_as_one_and_sharding_changes_no_bit(self):
        one = self.on_one_node()
        copies = self.on_two_nodes("copies", *UNCLIPPED)
        self.assertEqual(sorted(one), list(range(2, STEPS + 1, 2)))
        self.assertEqual(sorted(copies), sorted(one))
        for step, loss in copies.items():
            self.assertAlmostEqual(float(loss), float(one[step]), delta=TOLERANCE, msg=f"step {step}")
        self.assertEqual(self.on_two_nodes("hybrid", "--fsdp", "HYBRID_SHARD", *UNCLIPPED), copies)
        self.assertEqual(self.on_two_nodes("shards", "--fsdp", "FULL_SHARD", *UNCLIPPED), copies)

    def test_ranks_that_are_through_wait_for_the_one_that_reads_their_shards(self):
        """Rank 0 alone writes a text at the end, with units of all ranks, which are too large to be kept."""
        data = self.folder / "text"
        data.write_text("And the rest is as long as a window of the model has to be.\n" * 40)
        self.on_two_nodes("large", "--large", "--fsdp", "FULL_SHARD", "--data", data, steps=1, batch_size=2)


if __name__ == "__main__":
    require_namespaces()
    unittest.main(verbosity=1)

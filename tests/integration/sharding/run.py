#!/usr/bin/env python3
"""The example of sharding as a user runs it: the losses of copies, by flag and by environment, and on from a checkpoint."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])
# Clipping sums the squares of a sharded gradient in another order: a relative error of 2^-24 times some thousand terms, which
# 8 steps of AdamW at a learning rate of at most 1e-3 pass on.
TOLERANCE = 1e-3


class Sharding(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def run_example(self, *arguments, name, **env):
        done = subprocess.run([BUILD / "bin/accel-launch", "--cpu", "--num_processes", "2", BUILD / "examples/char_gpt", "--",
                               "--batch_size", "4", "--save_steps", "2", "--project_dir", pathlib.Path(self.scratch.name) / name,
                               *arguments], env={**os.environ, **env}, capture_output=True, text=True, errors="replace", timeout=240)
        return done

    def losses(self, *arguments, name, **env):
        done = self.run_example(*arguments, name=name, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", done.stdout, re.M)}

    def assert_close(self, losses, expected):
        self.assertEqual(sorted(losses), sorted(expected))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=TOLERANCE, msg=f"step {step}")

    def test_losses_are_those_of_copies_and_a_run_goes_on_as_either(self):
        copies = self.losses("--max_steps", "8", name="copies")
        self.assertEqual(sorted(copies), [2, 4, 6, 8])
        self.assert_close(self.losses("--fsdp", "FULL_SHARD", "--max_steps", "8", name="flag"), copies)
        by_environment = self.losses("--max_steps", "4", name="resumed", ACCELERATE_USE_FSDP="true",
                                     FSDP_SHARDING_STRATEGY="SHARD_GRAD_OP", FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP",
                                     FSDP_TRANSFORMER_CLS_TO_WRAP="GptBlock")
        self.assert_close(by_environment, {step: copies[step] for step in (2, 4)})
        on = self.losses("--resume", "--max_steps", "8", name="resumed")
        self.assert_close(on, {step: copies[step] for step in (6, 8)})

    def test_a_strategy_that_is_none_is_named_with_those_that_are(self):
        done = self.run_example("--fsdp", "EVERYTHING", name="wrong")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("'EVERYTHING' is no sharding strategy; expected one of FULL_SHARD, SHARD_GRAD_OP", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)

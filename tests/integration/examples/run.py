#!/usr/bin/env python3
"""The programs of README and tutorials train, and a second start goes on where the first one ended."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])


def losses(program, folder, processes):
    """Of each epoch, by its number."""
    command = [BUILD / "examples" / program]
    if processes:
        command = [BUILD / "bin/accel-launch", "--cpu", "--num_processes", str(processes), *command]
    done = subprocess.run(command, cwd=folder, env=dict(os.environ, HF_HOME=str(folder / "hf_home")), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"^epoch (\d+) loss ([\d.e-]+)$", done.stdout, re.M)}


class Examples(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def expect_learned(self, found):
        self.assertEqual(list(found), list(range(20)))
        self.assertLess(found[19], 0.05)  # a sine's own mean square is 0.5

    def test_minimal_learns_alone_and_on_two_processes(self):
        for processes in (0, 2):
            folder = self.folder / str(processes)
            folder.mkdir()
            self.expect_learned(losses("minimal", folder, processes))

    def test_minimal_goes_on_from_its_newest_checkpoint(self):
        whole = losses("minimal", self.folder, 2)
        checkpoints = self.folder / "minimal_run/checkpoints"
        for checkpoint in checkpoints.iterdir():
            if int(checkpoint.name.split("_")[1]) > 14:
                subprocess.run(["rm", "-r", checkpoint], check=True)
        rest = losses("minimal", self.folder, 2)
        self.assertEqual(rest, {epoch: loss for epoch, loss in whole.items() if epoch > 14})

    def test_the_program_of_plain_libtorch_and_its_port_both_learn(self):
        self.expect_learned(losses("plain_sine", self.folder, 0))
        self.expect_learned(losses("accel_sine", self.folder, 2))
        self.assertEqual(losses("accel_sine", self.folder, 2), {})  # nothing is left to do


if __name__ == "__main__":
    unittest.main()

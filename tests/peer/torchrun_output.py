#!/usr/bin/env python3
"""What workers see with --virtual-local-rank, and which lines --duplicate-std*-filters keep, is as under torchrun."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from peer_python import BUILD

JOB = """#!/bin/sh
echo "sees $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $CUDA_VISIBLE_DEVICES"
echo "an apple from $RANK"; echo "nothing from $RANK"; echo "a,b from $RANK"
echo "apple on stderr of $RANK" >&2; echo "orange on stderr of $RANK" >&2
printf "apple without an end"
"""
FLAGS = ["--nproc-per-node", "2", "--tee", "3", "--virtual-local-rank", "--duplicate-stdout-filters", "apple,a,,b",
         "--duplicate_stderr_filters=orange", "--no-python"]
LAUNCHERS = {"torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
             "accel-torchrun": [os.path.join(BUILD, "bin/accel-torchrun"), "--standalone"]}


TEED = """#!/bin/sh
echo "out of $RANK"
echo "err of $RANK" >&2
"""


def teed(launcher, template, *flags):
    """Lines of the console with what stands before them."""
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder) / "job.sh"
        job.write_text(TEED)
        job.chmod(0o755)
        environment = dict(os.environ)
        environment.pop("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", None)
        if template:
            environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = template
        done = subprocess.run([*LAUNCHERS[launcher], "--nproc-per-node", "2", "--log-dir", pathlib.Path(folder) / "logs", *flags,
                               "--no-python", job], capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return [sorted(line for line in text.splitlines() if " of " in line and line[-1].isdigit())
                for text in (done.stdout, done.stderr)]


def run(launcher, devices):
    """Lines of the console that say what workers see, and of both filtered files."""
    with tempfile.TemporaryDirectory() as folder:
        job, logs = pathlib.Path(folder) / "job.sh", pathlib.Path(folder) / "logs"
        job.write_text(JOB)
        job.chmod(0o755)
        environment = dict(os.environ)
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        done = subprocess.run([*LAUNCHERS[launcher], "--log-dir", logs, *FLAGS, job], capture_output=True, text=True,
                              env=environment, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        seen = sorted(line[line.index("sees"):] for line in done.stdout.splitlines() if "sees" in line)
        files = {}
        for name in ("filtered_stdout.log", "filtered_stderr.log"):
            found = list(logs.glob(f"*/attempt_0/{name}"))
            assert len(found) == 1, found
            # Without a newline at the end the peer's lines of two ranks may run together.
            files[name] = sorted(found[0].read_text().replace("end[", "end\n[").splitlines())
        return seen, files


class TorchrunOutput(unittest.TestCase):
    def test_ranks_devices_and_filtered_lines(self):
        for devices in ("5, 7", None):
            with self.subTest(devices):
                self.assertEqual(run("accel-torchrun", devices), run("torchrun", devices))

    def test_teed_lines_begin_with_role_and_rank(self):
        for template, flags in ((None, ["--tee", "3", "--role", "trainer"]),
                                ("<${rank}/$local_rank ${role_name}> $$rank ${RANK} ${} $ranks 5$ ", ["--tee", "0:3,1:1"])):
            with self.subTest(template=template):
                expected = teed("torchrun", template, *flags)
                self.assertEqual([len(lines) for lines in expected], [2, 2])
                self.assertEqual(teed("accel-torchrun", template, *flags), expected)

    def test_filters_without_a_file_are_told(self):
        done = subprocess.run([*LAUNCHERS["accel-torchrun"], "--duplicate-stdout-filters", "x", "--no-python", "true"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--duplicate-stdout-filters has no effect", done.stderr)


if __name__ == "__main__":
    unittest.main()

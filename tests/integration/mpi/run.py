#!/usr/bin/env python3
"""Workers that a real Open MPI starts: who they are, how a failure is told, and that nothing of them stays."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, PATIENCE, Program, is_alive

if not shutil.which("mpirun"):
    print("skipped: Open MPI is not installed; run scripts/setup.sh --tests")
    sys.exit(77)
RANK = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE pid $$"; '


class OpenMpi(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "hosts").write_text("localhost slots=2\n")
        self.environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def command(self, script):
        return [BIN / "accel-launch", "--cpu", "--num_processes", "2", "--mpirun_hostfile", self.folder / "hosts",
                "/bin/sh", "-c", script]

    def run_ranks(self, script):
        return subprocess.run(self.command(script), capture_output=True, text=True, timeout=PATIENCE,
                              env=self.environment)

    def start_ranks(self):
        """Two ranks that wait, and their pids."""
        program = Program("launch", self.command(RANK + "while :; do sleep 1; done"), env=self.environment)
        self.addCleanup(program.close)
        program.wait_for("of 2 pid", count=2)
        return program, [int(line.split()[-1]) for line in program.lines if "of 2 pid" in line]

    def wait_until_gone(self, pids):
        limit = time.monotonic() + PATIENCE
        while any(map(is_alive, pids)):
            self.assertLess(time.monotonic(), limit, "a rank stays")
            time.sleep(0.02)

    def test_ranks_know_who_they_are_and_share_nothing_of_one_worker(self):
        done = self.run_ranks(RANK + 'echo "$MASTER_ADDR:$MASTER_PORT $ACCELERATE_USE_CPU"; '
                              'echo "none: ${RANK-}${ACCEL_CHANNEL-}${TORCHELASTIC_ERROR_FILE-}"')
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(sum(line.startswith(("rank 0 of 2", "rank 1 of 2")) for line in lines), 2, done.stdout)
        self.assertEqual(lines.count("127.0.0.1:29500 True"), 2, done.stdout)
        self.assertEqual(lines.count("none: "), 2, done.stdout)

    def test_a_failure_of_a_rank_is_that_of_the_launch(self):
        done = self.run_ranks('exit $((OMPI_COMM_WORLD_RANK * 7))')
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("mpirun ended with exit code 7", done.stderr)

    def test_ctrl_c_ends_all_ranks(self):
        program, pids = self.start_ranks()
        program.process.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(), 130)
        self.wait_until_gone(pids)

    def test_the_death_of_the_launcher_leaves_no_rank(self):
        program, pids = self.start_ranks()
        program.process.kill()
        self.wait_until_gone(pids)


if __name__ == "__main__":
    unittest.main()

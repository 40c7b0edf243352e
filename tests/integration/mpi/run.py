#!/usr/bin/env python3
"""Workers that a real Open MPI starts: who they are, how a failure is told, that nothing of them stays, and that ranks of
libaccel train together as under accel-launch alone."""
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
from programs import BIN, BUILD, PATIENCE, Program, free_port, is_alive

if not shutil.which("mpirun"):
    print("skipped: Open MPI is not installed; run scripts/setup.sh --tests")
    sys.exit(77)
RANK = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE pid $$"; '
DIGITS = BUILD / "examples/digits"


class MpiTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "hosts").write_text("localhost slots=2\n")
        self.environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def wait_until_gone(self, pids):
        limit = time.monotonic() + PATIENCE
        while any(map(is_alive, pids)):
            self.assertLess(time.monotonic(), limit, "a rank stays")
            time.sleep(0.02)


class OpenMpi(MpiTest):
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
        self.assertIn("mpirun ended with exit code 7\n  cause     rank 1 ended with exit code 7\n", done.stderr)

    def test_ctrl_c_ends_all_ranks(self):
        program, pids = self.start_ranks()
        program.process.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(), 130)
        self.wait_until_gone(pids)

    def test_the_death_of_the_launcher_leaves_no_rank(self):
        program, pids = self.start_ranks()
        program.process.kill()
        self.wait_until_gone(pids)


@unittest.skipUnless(DIGITS.exists(), "the examples need LibTorch")
class DigitsUnderMpirun(MpiTest):
    def command(self, *arguments, program=(DIGITS,), mpi=True):
        hosts = ["--mpirun_hostfile", self.folder / "hosts"] if mpi else []
        return [BIN / "accel-launch", "--cpu", "--num_processes", "2", "--main_process_port", str(free_port()), *hosts,
                *program, "--project_dir", self.folder / "run", *arguments]

    def results(self, mpi):
        done = subprocess.run(self.command("--epochs", "1", mpi=mpi), capture_output=True, text=True, timeout=PATIENCE,
                              env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_losses_and_accuracy_are_those_of_accel_launch(self):
        expected = self.results(mpi=False)
        self.assertRegex("\n".join(expected), r"^epoch 1 loss \d.*\ntest accuracy 0\.\d+$")
        self.assertEqual(self.results(mpi=True), expected)

    def test_a_rank_that_is_killed_is_named_by_its_peer_and_by_the_report(self):
        says_who = ("/bin/sh", "-c", RANK + f'exec {DIGITS} "$@"', "rank")
        launched = Program("launch", self.command("--epochs", "1000", program=says_who), env=self.environment)
        self.addCleanup(launched.close)
        launched.wait_for("epoch 1 loss")
        pids = {line.split()[1]: int(line.split()[-1]) for line in launched.lines if line.startswith("rank ")}
        os.kill(pids["1"], signal.SIGKILL)
        self.assertEqual(launched.wait(), 137)
        launched.reader.join()
        self.assertRegex(launched.text(), rf"rank 1 \(process {pids['1']}\) has died")
        self.assertRegex(launched.text(), r"\n  cause     rank 1 on \S+ was ended by signal 9 \(Killed\)\n")
        self.wait_until_gone(pids.values())


if __name__ == "__main__":
    unittest.main()

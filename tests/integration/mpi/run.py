#!/usr/bin/env python3
"""Workers that a real Open MPI starts: who they are, how a failure is told, that nothing of them stays, and that ranks of
libaccel train together as under accel-launch alone."""
import os
import pathlib
import re
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

    def check_cause(self, said, rank):
        """Open MPI 4.1.4 loses its last words now and then, more often on a busy machine: what it says is told, and only that."""
        is_said = f"process rank {rank} with PID" in said or bool(re.search(rf"Process name: \[\[\d+,\d+\],{rank}\]", said))
        self.assertEqual(f"\n  cause     rank {rank} " in said, is_said, said)


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

    def test_ranks_that_do_not_divide_fill_the_slots(self):
        (self.folder / "hosts").write_text("localhost slots=2\n")
        done = subprocess.run([BIN / "accel-launch", "--cpu", "--mpirun_hostfile", self.folder / "hosts", "--num_processes", "2",
                               "--num_machines", "3", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()),
                               "/bin/sh", "-c", RANK], capture_output=True, text=True, timeout=PATIENCE, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.sub(" pid .*", "", line) for line in done.stdout.splitlines()),
                         [f"rank {rank} of 2" for rank in range(2)])

    def test_a_failure_of_a_rank_is_that_of_the_launch(self):
        done = self.run_ranks('exit $((OMPI_COMM_WORLD_RANK * 7))')
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("mpirun ended with exit code 7", done.stderr)
        self.check_cause(done.stderr, 1)

    def test_ctrl_c_ends_all_ranks(self):
        program, pids = self.start_ranks()
        program.process.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(), 130)
        self.wait_until_gone(pids)

    def test_the_death_of_the_launcher_leaves_no_rank(self):
        program, pids = self.start_ranks()
        program.process.kill()
        self.wait_until_gone(pids)


class DeepSpeedByOpenMpi(MpiTest):
    """Two hosts that mpirun reaches by its ssh, which is a script here: it runs the command on this machine in /bin/sh,
    without the caller's environment."""

    def run_ranks(self, script, *arguments, flags=()):
        ssh = self.folder / "bin/ssh"
        ssh.parent.mkdir()
        # Daemons of two hosts have no session folder in common; two on one machine that share one crash now and then.
        ssh.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
                       f'TMPDIR="{self.folder}/tmp-$1"; mkdir -p "$TMPDIR"; shift\n'
                       'exec env -i HOME="$HOME" TMPDIR="$TMPDIR" PATH=/usr/bin:/bin OMPI_ALLOW_RUN_AS_ROOT=1 '
                       'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 /bin/sh -c "$*"\n')
        ssh.chmod(0o755)
        (self.folder / "hosts").write_text("one slots=2\ntwo slots=3\n")
        environment = {**self.environment, "PATH": f"{ssh.parent}:{os.environ['PATH']}", "NCCL_DEBUG": "it's",
                       "SECRET": "kept"}
        command = [BIN / "accel-launch", "--use_deepspeed", "--zero_stage", "3", "--deepspeed_multinode_launcher", "openmpi",
                   "--deepspeed_hostfile", self.folder / "hosts", "--num_machines", "2", "--main_process_ip", "127.0.0.1",
                   "--main_process_port", "29742", *flags, "/bin/sh", "-c", script, "name", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)

    def test_ranks_of_both_hosts_are_told_what_deepspeed_reads(self):
        odd = ["a b", "it's", "$HOME", "*", "", "\\", "--flag=x;y", "5%h"]
        done = self.run_ranks(
            'printf "rank %s %s of %s %s|$MASTER_ADDR:$MASTER_PORT|$CUDA_VISIBLE_DEVICES|$NCCL_DEBUG|${SECRET-none}|'
            '$ACCELERATE_DEEPSPEED_ZERO_STAGE|%s\\n" $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE "$(printf "[%s]" "$@")"',
            *odd, flags=["--num_processes", "4"])
        self.assertEqual(done.returncode, 0, done.stderr)
        told = "127.0.0.1:29742|0,1|it's|none|3|" + "".join(f"[{text}]" for text in odd)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"rank {rank} {rank % 2} of 4 2|{told}" for rank in range(4)])

    def test_hosts_with_different_slots_are_one_job(self):
        done = self.run_ranks('printf "rank %s %s of %s %s|$CUDA_VISIBLE_DEVICES\\n" $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE',
                              flags=["--deepspeed_inclusion_filter", "one:1@two:0,2"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["rank 0 0 of 3 1|1", "rank 1 0 of 3 2|0,2", "rank 2 1 of 3 2|0,2"])

    def test_the_death_of_a_rank_ends_both_hosts(self):
        done = self.run_ranks("if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 600",
                              flags=["--deepspeed_inclusion_filter", "one:1@two:1"])
        self.assertEqual(done.returncode, 137, done.stderr)
        self.check_cause(done.stderr, 1)


@unittest.skipUnless(DIGITS.exists(), "the examples need LibTorch")
class DigitsUnderMpirun(MpiTest):
    def command(self, *arguments, program=(DIGITS,), mpi=True):
        hosts = ["--mpirun_hostfile", self.folder / "hosts"] if mpi else []
        return [BIN / "accel-launch", "--cpu", "--num_processes", "2", "--main_process_port", str(free_port()), *hosts,
                *program, "--project_dir", self.folder / "run", "--overwrite", *arguments]

    def results(self, mpi):
        done = subprocess.run(self.command("--epochs", "1", mpi=mpi), capture_output=True, text=True, timeout=PATIENCE,
                              env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_losses_and_accuracy_are_those_of_accel_launch(self):
        expected = self.results(mpi=False)
        self.assertRegex("\n".join(expected), r"^epoch 1 loss \d.*\ntest accuracy 0\.\d+$")
        self.assertEqual(self.results(mpi=True), expected)

    def kill_rank_1(self, **variables):
        """The launch after its end, and the ranks' pids."""
        says_who = ("/bin/sh", "-c", RANK + f'exec {DIGITS} "$@"', "rank")
        launched = Program("launch", self.command("--epochs", "1000", program=says_who), env={**self.environment, **variables})
        self.addCleanup(launched.close)
        launched.wait_for("epoch 1 loss")
        pids = {line.split()[1]: int(line.split()[-1]) for line in launched.lines if line.startswith("rank ")}
        os.kill(pids["1"], signal.SIGKILL)
        launched.wait()
        launched.reader.join()
        self.wait_until_gone(pids.values())
        return launched, pids

    def test_the_death_of_a_rank_is_that_of_the_launch(self):
        launched, _ = self.kill_rank_1()
        self.assertEqual(launched.process.returncode, 137)
        self.check_cause(launched.text(), 1)

    def test_a_rank_that_lost_its_peer_names_it(self):
        launched, pids = self.kill_rank_1(OMPI_MCA_orte_enable_recovery="1")  # mpirun leaves rank 0 alone, and calls it good
        self.assertRegex(launched.text(), rf"rank 1 \(process {pids['1']}\) has died")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Hosts of a hostfile: each runs a launcher that an `ssh` starts, and they meet as machines of one job.

The ssh here is a script that runs the command on this machine in /bin/sh, as sshd would: without the caller's
environment, and with its standard streams. To the host `gone` there is no way.
"""
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
from programs import BIN, PATIENCE, Program, free_port, is_alive

SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
  if [ "$1" = -o ]; then shift; fi
  shift
done
host=$1
shift
if [ "$host" = gone ]; then
  echo "ssh: connect to host gone port 22: No route to host" >&2
  exit 255
fi
exec env -i HOME="$HOME" PATH=/usr/bin:/bin OMP_NUM_THREADS=1 /bin/sh -c "$*"
"""
RANK = 'echo "rank $RANK of $WORLD_SIZE on $GROUP_RANK pid $$"; '


WITH_PDSH = unittest.skipUnless(shutil.which("pdsh"), "pdsh is not installed; run scripts/setup.sh --tests")


class Hosts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        ssh = self.folder / "bin/ssh"
        ssh.parent.mkdir()
        ssh.write_text(SSH)
        ssh.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{ssh.parent}:{os.environ['PATH']}", "NCCL_DEBUG": "it's",
                            "SECRET": "kept"}

    def command(self, script, hosts=("one", "two"), flags=(), arguments=(), way="ssh"):
        hostfile = self.folder / "hosts"
        hostfile.write_text("".join(f"{host} slots=2\n" for host in hosts))
        return [BIN / "accel-launch", "--use_deepspeed", "--deepspeed_hostfile", hostfile,
                "--deepspeed_multinode_launcher", way, "--num_machines", str(len(hosts)),
                "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()), *flags,
                "/bin/sh", "-c", script, *arguments]

    def run_hosts(self, *arguments, **options):
        return subprocess.run(self.command(*arguments, **options), capture_output=True, text=True, timeout=PATIENCE,
                              env=self.environment)

    def start_hosts(self, way="ssh"):
        """Four ranks that wait, and their pids."""
        program = Program("launch", self.command(RANK + "while :; do sleep 1; done", way=way), env=self.environment)
        self.addCleanup(program.close)
        program.wait_for("of 4 on", count=4)
        return program, [int(line.split()[-1]) for line in program.lines if "of 4 on" in line]

    def wait_until_gone(self, pids):
        limit = time.monotonic() + PATIENCE
        while any(map(is_alive, pids)):
            self.assertLess(time.monotonic(), limit, "a rank stays")
            time.sleep(0.02)

    def test_all_slots_of_all_hosts_are_one_job(self):
        done = self.run_hosts(RANK)
        self.assertEqual(done.returncode, 0, done.stderr)
        ranks = sorted(line.split(" pid")[0] for line in done.stdout.splitlines())
        self.assertEqual(ranks, [f"rank {rank} of 4 on {rank // 2}" for rank in range(4)])

    def test_secrets_arrive_and_stand_in_no_command_line(self):
        home = self.folder / "home"
        home.mkdir()
        (home / ".deepspeed_env").write_text("HF_TOKEN=hf_it's a secret\n")
        self.environment["HOME"] = str(home)
        done = self.run_hosts('printf "[%s]\\n" "$HF_TOKEN"; for process in /proc/[0-9]*; do '
                              'tr "\\0" " " <$process/cmdline 2>/dev/null | grep -v grep | grep -c "hf_[i]t" | grep -v 0; done')
        self.assertEqual(done.stdout, "[hf_it's a secret]\n" * 4, done.stderr)

    def check_arguments(self, way):
        odd = ["a b", "it's", "$HOME", "*", "", "line\nbreak", "\\", "--flag=x;y", "5%h"]
        done = self.run_hosts('printf "[%s]" "$NCCL_DEBUG" "${SECRET-none}" "$ACCELERATE_USE_DEEPSPEED" '
                              '"$CUDA_VISIBLE_DEVICES" "$@"; echo', flags=["--num_processes", "2", "--zero_stage", "3"],
                              arguments=["name", *odd], way=way)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = "".join(f"[{text}]" for text in ["it's", "none", "true", "0", *odd]) + "\n"
        # An argument has two lines, between which the lines of the other host may stand.
        self.assertEqual(sorted(done.stdout.splitlines()), sorted((expected * 2).splitlines()))

    def test_arguments_and_variables_arrive_as_they_are(self):
        self.check_arguments("ssh")

    @WITH_PDSH
    def test_arguments_and_variables_arrive_through_pdsh(self):
        self.check_arguments("pdsh")

    def test_a_failure_on_one_host_ends_the_others(self):
        done = self.run_hosts(f'if [ $RANK = 3 ]; then exit 7; fi; {RANK} sleep 600')
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("exit code 7", done.stderr)

    def test_a_host_without_a_way_is_named_with_the_words_of_ssh(self):
        done = self.run_hosts(RANK + "sleep 600", hosts=["one", "gone"])
        self.assertEqual(done.returncode, 255, done.stderr)
        self.assertIn("host gone", done.stderr)
        self.assertIn("No route to host", done.stderr)
        self.assertIn("`ssh gone true`", done.stderr)

    def check_ctrl_c(self, way):
        program, pids = self.start_hosts(way)
        program.process.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(), 130)
        self.wait_until_gone(pids)

    def check_death(self, way):
        program, pids = self.start_hosts(way)
        program.process.kill()
        self.wait_until_gone(pids)

    def test_ctrl_c_ends_all_hosts(self):
        self.check_ctrl_c("ssh")

    @WITH_PDSH
    def test_ctrl_c_ends_all_hosts_of_pdsh(self):
        self.check_ctrl_c("pdsh")

    def test_the_death_of_the_launcher_leaves_nothing_on_a_host(self):
        self.check_death("ssh")

    @WITH_PDSH
    def test_the_death_of_the_launcher_leaves_nothing_on_a_host_of_pdsh(self):
        self.check_death("pdsh")


class StopWithStdin(unittest.TestCase):
    def test_the_end_of_the_input_stops_the_job(self):
        with subprocess.Popen([BIN / "accel-launch", "--cpu", "--stop_with_stdin", "/bin/sh", "-c",
                               "echo there; while :; do sleep 1; done"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) as launcher:
            self.assertEqual(launcher.stdout.readline(), "there\n")
            launcher.stdin.write("dropped\n")
            launcher.stdin.flush()
            self.assertIsNone(launcher.poll())
            launcher.stdin.close()
            self.assertEqual(launcher.wait(PATIENCE), 143)


if __name__ == "__main__":
    unittest.main()

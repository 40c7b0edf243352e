#!/usr/bin/env python3
"""Hosts of a hostfile: each runs a launcher that an `ssh` starts, and they meet as machines of one job.

The ssh here is a script that runs the command on this machine in /bin/sh, as sshd would: without the caller's
environment, and with its standard streams. To the host `gone` there is no way.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, PATIENCE, free_port

SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
host=$1
shift
if [ "$host" = gone ] || [ "$host" = far ]; then
  echo "ssh: connect to host gone port 22: No route to host" >&2
  exit 255
fi
exec env -i HOME="$HOME" PATH=/usr/bin:/bin OMP_NUM_THREADS=1 /bin/sh -c "$*"
"""


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

    def command(self, script, hosts=("one", "two"), flags=(), arguments=()):
        hostfile = self.folder / "hosts"
        hostfile.write_text("".join(f"{host} slots=2\n" for host in hosts))
        return [BIN / "accel-launch", "--use_deepspeed", "--deepspeed_hostfile", hostfile,
                "--deepspeed_multinode_launcher", "ssh", "--num_machines", str(len(hosts)),
                "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()), *flags,
                "/bin/sh", "-c", script, *arguments]

    def run_hosts(self, *arguments, **options):
        return subprocess.run(self.command(*arguments, **options), capture_output=True, text=True, timeout=PATIENCE,
                              env=self.environment)

    def test_a_host_without_a_way_is_named_with_the_words_of_ssh(self):
        done = self.run_hosts("sleep 600", hosts=["gone", "far"])
        self.assertEqual(done.returncode, 255, done.stderr)
        self.assertRegex(done.stderr, r"host (gone|far) ended with exit code 255: ssh: .* No route to host")
        self.assertRegex(done.stderr, r"`ssh (gone|far) true`")


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

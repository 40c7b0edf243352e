#!/usr/bin/env python3
"""Workers that mpirun starts: the command line is the peer's, and Open MPI really runs two ranks of Accelerate.

For the command lines a program called mpirun writes down what it was started with; its --version makes it Open MPI or
Intel MPI, for both sides.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)
PEER = SOURCE / ".deps/peer"

import logging

import yaml
from accelerate.commands import launch
from accelerate.utils import launch as preparation

logging.disable(logging.WARNING)  # the peer's list of defaults, at each launch
LAUNCHER = BUILD / "bin/accel-launch"
SCRIPT = SOURCE / "tests/peer/scripts/accelerate_job.py"
CONFIGS = SOURCE / "tests/unit/launcher/configs"
VERSIONS = {"open": "mpirun (Open MPI) 4.1.4", "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.13"}
MPIRUN = """#!/bin/sh
if [ "$1" = --version ]; then echo "{version}"; exit; fi
printf '%s\\0' mpirun "$@" > "{folder}/words"
env -0 > "{folder}/variables"
"""
# OMP_NUM_THREADS: the cores that are granted, see docs/reference/parity.md.
NAMES = ("ACCELERATE_", "MASTER_")


class CommandLines(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.dice = random.Random(int(os.environ.get("ACCEL_TEST_SEED", "1")))
        self.parser = launch.launch_command_parser()

    def install(self, family):
        program = self.folder / "bin/mpirun"
        program.parent.mkdir(exist_ok=True)
        program.write_text(MPIRUN.format(version=VERSIONS[family], folder=self.folder))
        program.chmod(0o755)

    def environment(self):
        path = f"{self.folder}/bin:{PEER}/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.folder), "HF_HOME": str(self.folder), "PYTHON_EXEC": sys.executable}

    def peer(self, flags):
        with mock.patch.dict(os.environ, self.environment(), clear=True):
            args, _, _ = launch._validate_launch_command(self.parser.parse_args([*flags, str(SCRIPT), "--cpu", "x"]))
            words, variables = preparation.prepare_simple_launcher_cmd_env(args)
        return words, {name: text for name, text in variables.items() if name.startswith(NAMES)}

    def ours(self, flags):
        done = subprocess.run([LAUNCHER, *flags, SCRIPT, "--cpu", "x"], env=self.environment(),
                              capture_output=True, text=True, timeout=60, cwd=SOURCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        words = (self.folder / "words").read_text().split("\0")[:-1]
        entries = (self.folder / "variables").read_text().split("\0")
        variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        words.remove("-u")  # of Python
        return words, {name: text for name, text in variables.items() if name.startswith(NAMES)}

    def compare(self, flags):
        self.assertEqual(self.ours(flags), self.peer(flags))

    def hostfile(self, name):
        path = self.folder / name
        path.write_text("localhost slots=4\n")
        return str(path)

    def fixture_with_hosts(self):
        path = self.folder / "fixture.yaml"
        text = (CONFIGS / "0_28_0_mpi.yaml").read_text()
        path.write_text(text.replace("/home/user/hostfile", self.hostfile("hostfile")))
        return str(path)

    def test_the_fixture_of_a_file(self):
        for family in VERSIONS:
            with self.subTest(family):
                self.install(family)
                self.compare(["--config_file", self.fixture_with_hosts()])
                self.compare(["--config_file", str(SOURCE / "configs/mpirun.yaml")])

    def test_drawn_flags_and_files(self):
        for number in range(8):
            self.install(self.dice.choice(sorted(VERSIONS)))
            machines = self.dice.choice((1, 2, 3))
            said = {"num_machines": machines, "num_processes": machines * self.dice.choice((1, 2, 4))}
            if machines > 1 or self.dice.random() < 0.5:
                said |= {"main_process_ip": "10.0.0.7", "main_process_port": 1234}
            flags = ["--cpu", "--mpirun_hostfile", self.hostfile("h o s t s"), "--mixed_precision", "bf16"]
            flags += [word for name, value in said.items() for word in (f"--{name}", str(value))]
            if number % 2:
                path = self.folder / "mpi.yaml"
                path.write_text(yaml.safe_dump({"distributed_type": self.dice.choice(("NO", "MULTI_CPU")), "use_cpu": True,
                                                "mpirun_config": {"mpirun_hostfile": self.hostfile("hosts")}, **said}))
                flags = ["--config_file", str(path), "--mixed_precision", self.dice.choice(("no", "bf16"))]
            with self.subTest(flags, said=said):
                self.compare(flags)


@unittest.skipUnless(shutil.which("mpirun"), "Open MPI is not installed; run scripts/setup.sh --tests")
class OpenMpi(unittest.TestCase):
    def test_two_ranks_of_accelerate_train_together(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"PATH": f"{PEER}/bin:{os.environ['PATH']}", "HOME": folder, "OMP_NUM_THREADS": "1",
                           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            done = subprocess.run([LAUNCHER, "--config_file", "configs/mpirun.yaml", "--main_process_port", "29731", SCRIPT],
                                  capture_output=True, text=True, timeout=120, env=environment, cwd=SOURCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.assertEqual(sorted(result["rank"] for result in results), [0, 1], done.stdout)
        for result in results:
            self.assertEqual((result["world"], result["ranks"]), (2, [0, 1]))
            self.assertTrue(result["equal_weights"])


if __name__ == "__main__":
    unittest.main()

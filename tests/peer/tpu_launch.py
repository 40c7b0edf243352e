#!/usr/bin/env python3
"""A function of a script reaches torch_xla as under the peer; torch_xla is a module here that calls it for two cores.

For pods, xla_dist is a module here too: it writes down what it was started with, and runs the command on one machine, as a
script of a shell with every word between double quotes, which is how xla_dist of torch_xla does it.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import peer_python  # runs this script under the peer's Python

from accelerate.commands import launch

BUILD = pathlib.Path(peer_python.BUILD)
PEER = pathlib.Path(peer_python.SOURCE) / ".deps/peer"
LAUNCHER = BUILD / "bin/accel-launch"
SCRIPT = """import os, sys

def train():
    print(sys.argv[1:], os.path.basename(sys.argv[0]), os.environ.get("FORK_LAUNCHED"), os.environ.get("XLA_USE_BF16"))
"""
XMP = """def spawn(function, args=()):
    for index in range(2):
        function(index, *args)
"""
XLA_DIST = r'''import argparse, json, os, subprocess

def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tpu", required=True)
    parser.add_argument("--vm", action="append")
    parser.add_argument("--docker-image", default="")
    parser.add_argument("--docker-run-flag", action="append")
    parser.add_argument("--env", action="append")
    parser.add_argument("--restart-tpuvm-pod-server", action="store_true")
    parser.add_argument("positional", nargs="+")
    return parser

def resolve_and_execute(flags):
    with open(os.environ["TOLD"], "w") as told:
        json.dump(vars(flags), told)

if __name__ == "__main__":
    flags = get_args_parser().parse_args()
    resolve_and_execute(flags)
    lines = [" ".join(f'"{word}"' for word in words) for words in [*(["export", text] for text in flags.env), flags.positional]]
    environment = {**os.environ, "PYTHONPATH": os.environ["MODULES"]}
    raise SystemExit(subprocess.run(["/bin/sh", "-c", "; ".join(lines)], env=environment).returncode)
'''


class TpuTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        package = self.folder / "modules/xla_of_test/distributed"
        package.mkdir(parents=True)
        (package / "xla_multiprocessing.py").write_text(XMP)
        # Under another name while accelerate is imported, which would take it for the real one.
        (self.folder / "modules/sitecustomize.py").write_text(
            "import importlib.abc, importlib.util, sys\n"
            "class Finder(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, path, target=None):\n"
            "        if name != 'torch_xla' or 'accelerate.utils' not in sys.modules:\n"
            "            return None\n"
            "        import xla_of_test, xla_of_test.distributed.xla_multiprocessing as xmp\n"
            "        sys.modules.update({'torch_xla.distributed': xla_of_test.distributed,\n"
            "                            'torch_xla.distributed.xla_multiprocessing': xmp})\n"
            "        return importlib.util.spec_from_file_location('torch_xla', xmp.__file__,\n"
            "                                                      submodule_search_locations=[])\n"
            "sys.meta_path.insert(0, Finder())\n")
        self.script = self.folder / "job.py"
        self.script.write_text(SCRIPT)


class OneMachine(TpuTest):
    def launch(self, *flags):
        environment = {"PATH": f"{PEER}/bin:/usr/bin:/bin", "HOME": str(self.folder), "HF_HOME": str(self.folder),
                       "PYTHONPATH": str(self.folder / "modules"), "OMP_NUM_THREADS": "1"}
        return subprocess.run([LAUNCHER, "--tpu", *flags, self.script, "--epochs", "3"],
                              env=environment, capture_output=True, text=True, timeout=120)

    def test_each_core_calls_the_function(self):
        done = self.launch("--main_training_function", "train", "--mixed_precision", "bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "['--epochs', '3'] job.py 1 1\n" * 2)

    def test_a_function_that_is_not_there_is_named(self):
        done = self.launch()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("should have a function named main", done.stderr)


class Pods(TpuTest):
    def setUp(self):
        super().setUp()
        package = self.folder / "pods/torch_xla/distributed"
        package.mkdir(parents=True)
        (package / "xla_dist.py").write_text(XLA_DIST)
        self.config = self.folder / "pod.yaml"
        self.config.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: XLA\nnum_machines: 1\nnum_processes: 8\n"
                               "main_training_function: train\nmixed_precision: 'no'\nmachine_rank: 0\ntpu_use_cluster: true\n"
                               "tpu_name: pod-1\ntpu_vm:\n- a\n- b\nuse_cpu: false\n")
        self.told = self.folder / "told.json"

    def peer(self, flags):
        spec = importlib.util.spec_from_file_location("xla_dist", self.folder / "pods/torch_xla/distributed/xla_dist.py")
        xla_dist = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(xla_dist)
        modules = {"torch_xla": types.ModuleType("torch_xla"), "torch_xla.distributed": types.ModuleType("torch_xla.distributed"),
                   "torch_xla.distributed.xla_dist": xla_dist}
        modules["torch_xla.distributed"].xla_dist = xla_dist
        arguments = launch.launch_command_parser().parse_args(["--config_file", str(self.config), *flags, str(self.script), "x"])
        with mock.patch.dict(os.environ, {"TOLD": str(self.told)}), mock.patch.dict(sys.modules, modules), \
             mock.patch("accelerate.utils.launch.is_torch_xla_available", return_value=True), \
             mock.patch("accelerate.commands.launch.is_torch_xla_available", return_value=True):
            arguments, _, _ = launch._validate_launch_command(arguments)
            launch.tpu_pod_launcher(arguments)
        return json.loads(self.told.read_text())

    def ours(self, flags, *script_arguments):
        environment = {"PATH": f"{PEER}/bin:/usr/bin:/bin", "HOME": str(self.folder), "HF_HOME": str(self.folder),
                       "PYTHONPATH": str(self.folder / "pods"), "MODULES": str(self.folder / "modules"),
                       "TOLD": str(self.told), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([LAUNCHER, "--config_file", self.config, *flags, self.script, *script_arguments],
                              env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(self.told.read_text()), done.stdout

    def test_xla_dist_is_told_what_the_peer_tells_it_and_starts_the_function_there(self):
        odd = ["a b", "it's", '"q"', "$HOME", "`x`", "\\\\", "*", "-x"]
        told, said = self.ours(["--mixed_precision", "bf16", "--env", "FORK=$x"], *odd)
        self.assertEqual(said, f"{odd} job.py 1 1\n" * 2)
        words = told["positional"]
        self.assertEqual(words.pop(0), str(LAUNCHER))
        self.assertEqual(words[words.index("--mixed_precision") + 1], "bf16")
        words[words.index("--mixed_precision") + 1] = "no"  # see docs/reference/parity.md
        del words[-len(odd):]
        told["env"].remove("FORK=\\$x")
        expected = self.peer(["--mixed_precision", "bf16"])
        self.assertEqual(expected["positional"].pop(0), "accelerate-launch")
        self.assertEqual(expected["positional"].pop(), "x")
        self.assertEqual(told, expected)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""A function of a script reaches torch_xla as under the peer; torch_xla is a module here that calls it for two cores."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
PEER = SOURCE / ".deps/peer"
if not (PEER / "bin/python").exists():
    print(f"skipped: {PEER} is missing; run scripts/setup.sh")
    sys.exit(77)
SCRIPT = """import os, sys

def train():
    print(sys.argv[1:], os.path.basename(sys.argv[0]), os.environ.get("FORK_LAUNCHED"), os.environ.get("XLA_USE_BF16"))
"""
XMP = """def spawn(function, args=()):
    for index in range(2):
        function(index, *args)
"""


class TpuLaunch(unittest.TestCase):
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

    def launch(self, *flags):
        environment = {"PATH": f"{PEER}/bin:/usr/bin:/bin", "HOME": str(self.folder), "HF_HOME": str(self.folder),
                       "PYTHONPATH": str(self.folder / "modules"), "OMP_NUM_THREADS": "1"}
        return subprocess.run([BUILD / "bin/accel-launch", "--tpu", *flags, self.script, "--epochs", "3"],
                              env=environment, capture_output=True, text=True, timeout=120)

    def test_each_core_calls_the_function(self):
        done = self.launch("--main_training_function", "train", "--mixed_precision", "bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "['--epochs', '3'] job.py 1 1\n" * 2)

    def test_a_function_that_is_not_there_is_named(self):
        done = self.launch()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("should have a function named main", done.stderr)


if __name__ == "__main__":
    unittest.main()

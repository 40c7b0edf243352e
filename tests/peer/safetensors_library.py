#!/usr/bin/env python3
"""A program that links accel::safetensors alone against Python's safetensors: each reads what the other wrote, to the byte."""
import os
import subprocess
import tempfile
import unittest

from peer_python import BUILD
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

TOOL = os.path.join(BUILD, "tests/tensor_copy")
DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "complex64", "float64", "int64",
          "uint64"]


class Library(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = lambda name: os.path.join(scratch.name, name)

    def copied(self, tensors, metadata):
        save_file(tensors, self.path("python"), metadata)
        done = subprocess.run([TOOL, self.path("python"), self.path("accel")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_what_was_read_and_written_again_is_the_same_file_and_python_reads_it(self):
        numbers = numpy.random.default_rng(3).integers(0, 100, (5, 7))
        tensors = {dtype: numbers.astype(dtype) for dtype in DTYPES}
        tensors |= {"empty": numpy.zeros((0, 3), "float32"), "single": numpy.array(4.5), 'na\u00efve "name"': numbers[0]}

        listed = self.copied(tensors, {"note": "a \"b\"\n"})

        with open(self.path("python"), "rb") as left, open(self.path("accel"), "rb") as right:
            self.assertEqual(left.read(), right.read())
        loaded = load_file(self.path("accel"))
        self.assertEqual(sorted(loaded), sorted(tensors))
        for name, values in tensors.items():
            self.assertEqual((loaded[name].dtype, loaded[name].shape), (values.dtype, values.shape), name)
            numpy.testing.assert_array_equal(loaded[name], values)
        with safe_open(self.path("accel"), "numpy") as opened:
            self.assertEqual(opened.metadata(), {"note": "a \"b\"\n"})
        self.assertIn("uint64 U64 5 7", listed.splitlines())
        self.assertIn("single F64", listed.splitlines())

    def test_a_file_that_python_refuses_is_refused(self):
        self.copied({"a": numpy.zeros(4, "float32")}, None)
        with open(self.path("python"), "r+b") as file:
            file.truncate(os.path.getsize(self.path("python")) - 1)
        with self.assertRaises(Exception):
            load_file(self.path("python"))
        done = subprocess.run([TOOL, self.path("python"), self.path("none")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("[safetensors.header]", done.stderr)
        self.assertFalse(os.path.exists(self.path("none")))


if __name__ == "__main__":
    unittest.main(verbosity=2)

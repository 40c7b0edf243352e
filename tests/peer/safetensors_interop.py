#!/usr/bin/env python3
"""Python's safetensors opens what libaccel saved, and the other way round, equal to the bit."""
import os
import struct
import subprocess
import tempfile
import unittest

from peer_python import BUILD, SOURCE

import torch
from accelerate import Accelerator, load_checkpoint_in_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TOOL = os.path.join(BUILD, "tests/weights_exchange")
# Every dtype that both sides can hold; the float8 without a Python name are written as raw bytes above.
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz,
    torch.float8_e4m3fnuz, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
    torch.uint32, torch.float32, torch.complex64, torch.float64, torch.int64, torch.uint64,
]


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def run(*arguments):
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stderr}")


class Interop(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = lambda name: os.path.join(scratch.name, name)

    def assert_same(self, left, right):
        self.assertEqual(sorted(left), sorted(right))
        for name in left:
            self.assertEqual(left[name].dtype, right[name].dtype, name)
            self.assertEqual(left[name].shape, right[name].shape, name)
            self.assertEqual(raw(left[name]), raw(right[name]), name)

    def python_tensors(self):
        torch.manual_seed(7)
        tensors = {}
        for dtype in DTYPES:
            name = str(dtype).removeprefix("torch.")
            bits = torch.randint(0, 256, (6, 16), dtype=torch.uint8)
            tensors[name] = bits > 127 if dtype == torch.bool else bits.view(dtype)
            tensors[name + ".empty"] = torch.empty(2, 0, dtype=dtype)
            tensors[name + ".single"] = tensors[name].reshape(-1)[3].clone()
        tensors['na\u00efve "name"/with\ttab'] = torch.randn(3)
        return tensors

    def test_what_python_saved_comes_back_the_same_file_to_the_byte(self):
        tensors = self.python_tensors()
        save_file(tensors, self.path("python"), {"format": "pt"})

        run("copy", self.path("python"), self.path("accel"))

        self.assert_same(load_file(self.path("accel")), tensors)
        with open(self.path("python"), "rb") as left, open(self.path("accel"), "rb") as right:
            self.assertEqual(left.read(), right.read())

    def test_python_opens_views_single_values_and_empty_tensors_of_libaccel(self):
        run("make", self.path("accel"))

        grid = torch.arange(24, dtype=torch.float32).reshape(4, 6)
        self.assert_same(load_file(self.path("accel")), {
            "transposed": grid.t(),
            "every second column": grid[:, ::2],
            "row repeated": grid[1].expand(3, 6),
            "half": grid.bfloat16(),
            "single": torch.tensor(5),
            "empty": torch.empty(0, 3, dtype=torch.int32),
        })
        with safe_open(self.path("accel"), "pt") as opened:
            self.assertEqual(opened.metadata(), {"format": "pt"})

    def test_data_starts_at_a_multiple_of_eight(self):
        run("make", self.path("accel"))
        with open(self.path("accel"), "rb") as file:
            self.assertEqual(struct.unpack("<Q", file.read(8))[0] % 8, 0)

    def test_hostile_files_are_refused_by_name_and_nothing_is_written(self):
        folder = os.path.join(SOURCE, "tests/hostile/safetensors")
        # All of them are read by runtime_test; here a few go the whole way to the user.
        names = ["offsets_overlap.safetensors", "header_above_limit.safetensors", "tensor_twice.safetensors"]
        for name in names:
            done = subprocess.run([TOOL, "copy", os.path.join(folder, name), self.path("out")],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, name)
            self.assertIn("[safetensors.header]", done.stderr, name)
            self.assertIn(name, done.stderr)
        self.assertFalse(os.path.exists(self.path("out")))


class Network(torch.nn.Module):
    """The network of weights_exchange.cc."""

    def __init__(self):
        super().__init__()
        self.linear1 = torch.nn.Linear(3, 4)
        self.batchnorm = torch.nn.BatchNorm1d(4)
        self.linear2 = torch.nn.Linear(4, 5)


class Models(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.join(scratch.name, "weights")

    def test_accelerate_loads_the_shards_of_save_model(self):
        run("save-model", self.folder)

        self.assertEqual(len([name for name in os.listdir(self.folder) if name.startswith("model-")]), 3)
        network = Network()
        load_checkpoint_in_model(network, self.folder)
        for name, parameter in network.named_parameters():
            expected = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
            self.assertTrue(torch.equal(parameter, expected), name)

    def test_libaccel_loads_the_shards_of_accelerate(self):
        network = Network()
        Accelerator(cpu=True).save_model(network, self.folder, max_shard_size=100)

        run("load-model", self.folder, self.folder + ".one")

        loaded = load_file(self.folder + ".one")
        for name, tensor in network.state_dict().items():
            self.assertTrue(torch.equal(loaded[name], tensor), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)

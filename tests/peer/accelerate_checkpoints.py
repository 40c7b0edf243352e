#!/usr/bin/env python3
"""Checkpoints go between HF Accelerate and libaccel: a run that changes sides in the middle ends as one that did not.

Six steps in Python are the reference. Three there and three here, and the other way round, with what save_state() of each side
writes: weights, optimizer, schedule, generators (the model has a dropout) and a registered object. Both sides call the same
kernels in the same order (AdamW by its fused ones, on tensors that fill whole vectors), so all numbers must be equal to the bit.

Also what accel::save() and save_model() write without safetensors, read by torch.load(weights_only=True), and back.
"""
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

from peer_python import BUILD, PEER
from train_peer import RANKS, leave_group, run_ranks

import numpy
import torch
from safetensors.torch import load_file, save_file

TOOL = os.path.join(BUILD, "tests/train_peer")
EXCHANGE = os.path.join(BUILD, "tests/weights_exchange")


def make_net():
    nn = torch.nn
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.25), nn.Linear(32, 32), nn.Linear(32, 16))


def write_case(path):
    torch.manual_seed(3)
    tensors = {"model." + key: value for key, value in make_net().state_dict().items()}
    tensors["inputs"] = torch.randn(6, RANKS, 5, 8)
    tensors["labels"] = torch.randint(0, 4, (6, RANKS, 5))
    save_file(tensors, path)


class Weights:
    """What a program registers."""

    def __init__(self):
        self.values = []

    def state_dict(self):
        return {"values": self.values, "count": len(self.values), "name": "first weight",
                "last": torch.tensor(self.values[-1:]), "unknown to C++": None}

    def load_state_dict(self, state):
        self.values = list(state["values"])
        assert state["count"] == len(self.values) and state["name"] == "first weight"
        assert state["last"].tolist() == torch.tensor(self.values[-1:]).tolist()


def worker(name, path, source, target, first, steps, safe):
    """One rank of HF Accelerate, as train_peer.cc has it."""
    from accelerate import Accelerator

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    tensors = load_file(path)
    net = make_net()
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    if name == "sgd":
        own = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    else:
        own = torch.optim.AdamW(net.parameters(), lr=0.05, amsgrad=True, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(own, lambda step: 1.0 / (1.0 + step))
    model, optimizer, scheduler = accelerator.prepare(net, own, schedule)
    weights = Weights()
    accelerator.register_for_checkpointing(weights)
    rank = accelerator.process_index
    torch.manual_seed(7 + rank)
    if source != "-":
        accelerator.load_state(source)
        for group in own.param_groups:
            group["fused"] = name == "adamw"  # no option of LibTorch's
    for batch in range(int(first), int(first) + int(steps)):
        loss = torch.nn.functional.cross_entropy(model(tensors["inputs"][batch][rank]), tensors["labels"][batch][rank])
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        weights.values.append(float(net[0].weight[0, 0].item()))  # the same on all ranks: rank 0's is saved
    if target != "-":
        accelerator.save_state(target, safe_serialization=safe == "safe")
    print(float(scheduler.get_last_lr()[0]).hex(), len(weights.values))
    for value in weights.values:
        print(value.hex())
    for parameter in net.parameters():
        print(parameter.detach().numpy().tobytes().hex())
    sys.stdout.flush()
    if accelerator.num_processes > 1:
        leave_group()


def hexadecimal(lines):
    """Python writes 0x1.8000000000000p+0 where C writes 0x1.8p+0."""
    return [" ".join(float.fromhex(word).hex() if word.startswith(("0x", "-0x")) else word for word in line.split())
            for line in lines]


def run(command, ranks):
    if ranks > 1:
        return [hexadecimal(lines) for lines in run_ranks(command, ranks)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD", "LOCAL", "MASTER"))}
    environment.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [hexadecimal(done.stdout.splitlines())]


def in_python(*arguments, ranks):
    return run([PEER, __file__, "worker", *map(str, arguments)], ranks)


def in_cpp(*arguments, ranks):
    return run([TOOL, "resume", *map(str, arguments)], ranks)


class AccelerateCheckpoints(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.case = self.folder / "case.safetensors"
        write_case(self.case)

    def exchange(self, ranks, safe, names):
        for name in names:
            with self.subTest(optimizer=name, ranks=ranks, weights=safe):
                first, second = self.folder / f"{name}-python", self.folder / f"{name}-cpp"
                whole = in_python(name, self.case, "-", "-", 0, 6, safe, ranks=ranks)
                in_python(name, self.case, "-", first, 0, 3, safe, ranks=ranks)
                self.assertEqual(in_cpp(name, self.case, first, "-", 3, 3, safe, ranks=ranks), whole)
                in_cpp(name, self.case, "-", second, 0, 3, safe, ranks=ranks)
                self.assertEqual(in_python(name, self.case, second, "-", 3, 3, safe, ranks=ranks), whole)
                self.check_generators(second)

    def check_generators(self, folder):
        """What is there of Python and NumPy is what their modules take, as of the seed of torch's."""
        from accelerate.utils import load

        states = load(folder / "random_states_0.pkl")
        random.Random().setstate(states["random_state"])
        generator = numpy.random.RandomState()
        generator.set_state(states["numpy_random_seed"])
        self.assertEqual(generator.random_sample(), numpy.random.RandomState(7).random_sample())

    def test_a_run_of_one_process_changes_sides(self):
        self.exchange(1, "safe", ("sgd", "adamw"))

    def test_a_run_of_two_processes_changes_sides_with_pickled_weights(self):
        self.exchange(2, "pickle", ("adamw",))

    def test_what_libaccel_saves_twice_over_is_still_the_run(self):
        folders = [self.folder / str(i) for i in range(2)]
        whole = in_python("adamw", self.case, "-", "-", 0, 6, "safe", ranks=1)
        in_python("adamw", self.case, "-", folders[0], 0, 2, "safe", ranks=1)
        in_cpp("adamw", self.case, folders[0], folders[1], 2, 2, "pickle", ranks=1)
        self.assertIn("pytorch_model.bin", os.listdir(folders[1]))
        self.assertEqual(in_python("adamw", self.case, folders[1], "-", 4, 2, "safe", ranks=1), whole)


class PickledFiles(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def tool(self, *arguments):
        done = subprocess.run([EXCHANGE, *map(str, arguments)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_weights_in_pickled_shards_are_read_by_torch_and_accelerate(self):
        from accelerate import load_checkpoint_in_model

        self.tool("save-pickled-model", self.folder)
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["pytorch_model-00001-of-00003.bin", "pytorch_model-00002-of-00003.bin",
                          "pytorch_model-00003-of-00003.bin", "pytorch_model.bin.index.json"])
        tensors = {}
        for file in self.folder.glob("*.bin"):
            tensors.update(torch.load(file, weights_only=True))
        self.assertEqual(tensors["linear1.weight"].tolist(), torch.arange(12.0).reshape(4, 3).tolist())
        net = torch.nn.Module()
        net.linear1, net.batchnorm, net.linear2 = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 5)
        load_checkpoint_in_model(net, self.folder, strict=False)
        self.assertEqual(net.linear2.weight.tolist(), torch.arange(20.0).reshape(5, 4).tolist())

    def test_weights_that_torch_saved_are_read(self):
        net = torch.nn.Module()
        net.linear1, net.batchnorm, net.linear2 = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 5)
        net.linear2.weight = torch.nn.Parameter(torch.randn(4, 5).t())  # not row-major
        torch.save(net.state_dict(), self.folder / "pytorch_model.bin")
        self.tool("load-model", self.folder, self.folder / "read.safetensors")
        read = load_file(self.folder / "read.safetensors")
        for name, value in net.state_dict().items():
            self.assertTrue(torch.equal(read[name], value), name)

    def test_objects_go_both_ways(self):
        values = {"none": None, "yes": True, "numbers": [1, -2, 2**40, -(2**35), 70000, 0.5], "text": "µ",
                  "pair": (1, "two"), "nested": {"tensor": torch.arange(6).reshape(2, 3), 3: [{}, [], ()]}}
        torch.save(values, self.folder / "in.pt")
        self.tool("copy-object", self.folder / "in.pt", self.folder / "out.pt")
        read = torch.load(self.folder / "out.pt", weights_only=True)
        self.assertTrue(torch.equal(read["nested"].pop("tensor"), values["nested"].pop("tensor")))
        self.assertEqual(read, values)
        self.assertEqual([type(value) for value in read.values()], [type(value) for value in values.values()])

    def test_tensors_of_one_memory_still_share_it(self):
        whole = torch.arange(8.0)
        torch.save({"a": whole, "b": whole}, self.folder / "in.pt")
        self.tool("copy-object", self.folder / "in.pt", self.folder / "out.pt")
        read = torch.load(self.folder / "out.pt", weights_only=True)
        self.assertEqual(read["a"].data_ptr(), read["b"].data_ptr())


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        unittest.main()

#!/usr/bin/env python3
"""Single tensors of a module: names, values, files and error texts are those of Accelerate, and so is what weights cast up compute."""
import json
import logging
import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

from peer_python import BUILD

import torch
from accelerate import dispatch_model
from accelerate.big_modeling import attach_layerwise_casting_hooks, init_on_device
from accelerate.utils import (align_module_device, has_offloaded_params, named_module_tensors, offload_state_dict,
                              retie_parameters, set_module_tensor_to_device)
from accelerate.utils.modeling import get_state_dict_offloaded_model
from safetensors.torch import save_file

TOOL = os.path.join(BUILD, "tests/module_tensors_peer")
VARIABLE = "ACCELERATE_INIT_INCLUDE_BUFFERS"
logging.disable(logging.WARNING)

# What LibTorch calls its dtypes.
DTYPE_NAMES = {torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int64: "Long"}


def new_net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))


def described(net):
    return [[name, str(tensor.device), DTYPE_NAMES[tensor.dtype], list(tensor.shape),
             None if tensor.is_meta else tensor.double().sum().item()]
            for name, tensor in named_module_tensors(net, recurse=True)]


class ModuleTensors(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        torch.manual_seed(11)
        cls.state = {name: tensor.clone() for name, tensor in new_net().state_dict().items()}
        cls.weights = str(cls.folder / "model.safetensors")
        save_file(cls.state, cls.weights)

    def ask(self, **request):
        done = subprocess.run([TOOL], input=json.dumps(request) + "\n", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def net(self):
        net = new_net()
        net.load_state_dict(self.state)
        return net

    def test_names_come_in_the_same_order(self):
        for child in (None, 1):
            for recurse in (False, True):
                for buffers in (False, True):
                    with self.subTest(child=child, recurse=recurse, buffers=buffers):
                        net = self.net()
                        theirs = [name for name, _ in named_module_tensors(
                            net if child is None else net[child], include_buffers=buffers, recurse=recurse)]
                        ours = self.ask(what="names", child=child, recurse=recurse, buffers=buffers)
                        self.assertEqual(ours, {"answer": theirs})

    def set_both(self, name, device, init="cpu", shape=None, value_dtype="float32", dtype=None):
        request = {"what": "set", "name": name, "device": device, "init": init}
        options = {}
        if init == "cpu":
            request["weights"] = self.weights
        if shape is not None:
            request |= {"shape": shape, "fill": 2, "value_dtype": value_dtype}
            options["value"] = torch.full(shape, 2, dtype=getattr(torch, value_dtype))
        if dtype is not None:
            request["dtype"] = dtype
            options["dtype"] = getattr(torch, dtype)
        if init == "meta":
            with init_on_device(torch.device("meta")):
                net = new_net()
        else:
            net = self.net()
        try:
            set_module_tensor_to_device(net, name, device, **options)
            theirs = {"answer": described(net)}
        except ValueError as error:
            theirs = {"error": str(error)}
        return self.ask(**request), theirs

    def test_a_tensor_gets_a_value_a_dtype_or_another_device(self):
        for case in ({"name": "0.weight", "device": "cpu", "shape": [4, 4]},
                     {"name": "0.weight", "device": "cpu", "shape": [4, 4], "value_dtype": "float16"},
                     {"name": "0.weight", "device": "cpu", "shape": [4, 4], "dtype": "bfloat16"},
                     {"name": "1.running_mean", "device": "cpu", "shape": [4], "dtype": "float16"},
                     {"name": "1.num_batches_tracked", "device": "cpu", "shape": [], "value_dtype": "int64", "dtype": "float16"},
                     {"name": "2.bias", "device": "meta"},
                     {"name": "1.running_var", "device": "meta"},
                     {"name": "2.bias", "device": "cpu"},
                     {"name": "2.bias", "device": "cpu", "init": "meta", "shape": [4]}):
            with self.subTest(**case):
                ours, theirs = self.set_both(**case)
                self.assertIn("answer", theirs)
                if case.get("init") == "meta":  # statistics of both are fresh; random weights are not there
                    self.assertEqual([one[:4] for one in ours["answer"]], [one[:4] for one in theirs["answer"]])
                else:
                    self.assertEqual(ours, theirs)

    def test_errors_have_the_same_texts(self):
        for case in ({"name": "0.weight", "device": "cpu", "init": "meta"},
                     {"name": "0.weight", "device": "cpu", "shape": [3, 4]}):
            with self.subTest(**case):
                ours, theirs = self.set_both(**case)
                self.assertIn("error", theirs)
                self.assertEqual(ours, theirs)
        ours, theirs = self.set_both("0.nothing", "cpu")  # Accelerate prints the whole module in front
        said = "does not have a parameter or a buffer named nothing."
        self.assertTrue(theirs["error"].endswith(said), theirs)
        self.assertTrue(ours["error"].endswith(said), ours)

    def test_modules_are_made_on_the_named_device(self):
        for init in ("cpu", "meta"):
            for include, variable in ((None, None), (True, None), (False, None), (None, "1"), (False, "1")):
                with self.subTest(init=init, include=include, variable=variable):
                    changes = {} if variable is None else {VARIABLE: variable}
                    with mock.patch.dict(os.environ, changes):
                        with init_on_device(torch.device(init), include_buffers=include):
                            theirs = described(new_net())
                        request = {} if include is None else {"include_buffers": include}
                        ours = self.ask(what="init", init=init, **request)["answer"]
                    self.assertEqual([one[:4] for one in ours], [one[:4] for one in theirs])

    def test_names_share_memory_again(self):
        net = self.net()
        group = ["0.weight", "2.weight"]
        retie_parameters(net, [group])
        self.assertIs(net[0].weight, net[2].weight)
        is_shared, sums = self.ask(what="retie", weights=self.weights, group=group)["answer"]
        self.assertTrue(is_shared)
        self.assertEqual(sums, {name: tensor.double().sum().item()
                                for name, tensor in net.named_parameters(remove_duplicate=False)})

    def test_the_whole_state_of_an_offloaded_model(self):
        places = {"0": "disk", "1": "cpu", "2": "disk"}
        net = dispatch_model(self.net(), places, offload_dir=str(self.folder / "theirs"))
        self.assertTrue(has_offloaded_params(net[0]))
        with align_module_device(net[0], "cpu"):
            total = sum(tensor.sum().item() for tensor in net[0].parameters())
        offload_state_dict(str(self.folder / "their_state"), get_state_dict_offloaded_model(net))
        before, meanwhile, after, ours = self.ask(what="state", weights=self.weights, map=places,
                                                  folder=str(self.folder / "ours"),
                                                  out=str(self.folder / "our_state"))["answer"]
        self.assertEqual((before, meanwhile, after), (True, False, True))
        # Twenty values, added in any order: twenty roundings of 2^-24 of the sum of their sizes, which is below 20 * 0.5.
        self.assertAlmostEqual(ours, total, delta=20 * 2**-24 * 10)
        files = sorted(path.name for path in (self.folder / "their_state").iterdir())
        self.assertEqual(sorted(path.name for path in (self.folder / "our_state").iterdir()), files)
        self.assertEqual(len(files), len(self.state) + 1)
        for name in files:
            theirs, ours = ((self.folder / side / name).read_bytes() for side in ("their_state", "our_state"))
            if name == "index.json":
                theirs, ours = json.loads(theirs), json.loads(ours)
            self.assertEqual(ours, theirs, name)

    def test_weights_that_are_cast_up_compute_the_same(self):
        # Weights in eight bits are multiples of 2^-9 (e4m3; e5m2: 2^-16, but of two bits: those here of 2^-6 and more are multiples
        # of 2^-8), and inputs are whole numbers, so all sums of both layers are exact in float32, in whatever order.
        state = {name: tensor.mul(64).round().div(64).clamp(-0.5, 0.5) if tensor.is_floating_point() else tensor
                 for name, tensor in self.state.items()}
        weights = str(self.folder / "coarse.safetensors")
        save_file(state, weights)
        inputs = [1.0, -1, 0, 2, 3, 1, -2, 1]
        seen = set()
        for storage in ("float8_e4m3fn", "float8_e5m2"):
            for skip in ([], ["^0$"], ["2"]):
                with self.subTest(storage=storage, skip=skip), torch.no_grad():
                    net = new_net().eval()
                    net.load_state_dict(state)
                    attach_layerwise_casting_hooks(net, getattr(torch, storage), torch.float32,
                                                   skip_modules_pattern=skip or None)
                    theirs = net[2](net[0](torch.tensor(inputs).view(2, 4))).flatten().tolist()
                    ours = self.ask(what="cast", weights=weights, storage=storage, compute="float32", skip=skip,
                                    input=inputs)
                    self.assertEqual(ours, {"answer": theirs})
                    seen.add(tuple(theirs))
        self.assertEqual(len(seen), 6)  # else the cast, or the patterns, changed nothing


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Device maps are Accelerate's own on random models, and each side computes with the offloaded weights of the other."""
import json
import logging
import os
import pathlib
import random
import subprocess
import tempfile
import unittest
import warnings

from peer_python import BUILD

import torch
from accelerate import infer_auto_device_map, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.utils import (compute_module_sizes, find_tied_parameters, get_balanced_memory, offload_state_dict)
from accelerate.utils.modeling import calculate_maximum_sizes
from accelerate.utils.offload import OffloadedWeightsLoader
from safetensors.torch import save_file

TOOL = os.path.join(BUILD, "tests/placement_peer")
NUM_MODELS = 200
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")


def random_tensor(draw, name, tie=-1, dtypes=("float32", "float16", "bfloat16")):
    return [name, draw.choice(dtypes), [draw.randint(1, 9) for _ in range(draw.randint(1, 3))], tie]


def random_model(draw, depth=0):
    """A tree of modules, as the tool takes it."""
    children = [] if depth == 3 else [[str(i) if draw.random() < 0.5 else f"layer{i}", random_model(draw, depth + 1)]
                                      for i in range(draw.randint(1 if depth == 0 else 0, 4))]
    return {"class": draw.choice(["Block", "Layer", "Attention", "Net"]),
            "parameters": [random_tensor(draw, f"p{i}") for i in range(draw.randint(0, 2))],
            "buffers": [random_tensor(draw, f"b{i}", dtypes=("float32", "int64", "bool", "int8"))
                        for i in range(draw.randint(0, 1))],
            "children": children}


def modules_of(model):
    yield model
    for _, child in model["children"]:
        yield from modules_of(child)


def tie_some(draw, model):
    """Gives two modules at different places a parameter that they share."""
    leaves = [one for one in modules_of(model) if not one["children"]]
    if len(leaves) > 1 and draw.random() < 0.4:
        tensor = random_tensor(draw, "shared", tie=1)
        for leaf in draw.sample(leaves, 2):
            leaf["parameters"].append(list(tensor))


def torch_model(description, tied):
    module = type(description["class"], (torch.nn.Module,), {})()
    for name, dtype, shape, tie in description["parameters"]:
        tensor = torch.nn.Parameter(torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
        module.register_parameter(name, tied.setdefault(tie, tensor) if tie >= 0 else tensor)
    for name, dtype, shape, _ in description["buffers"]:
        module.register_buffer(name, torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
    for name, child in description["children"]:
        module.add_module(name, torch_model(child, tied))
    return module


def random_question(draw):
    model = random_model(draw)
    tie_some(draw, model)
    total = int(compute_module_sizes(torch_model(model, {}))[""])
    def limit():
        return draw.choice([0, draw.randint(0, total + 64), draw.randint(0, total // 2 + 64)])
    max_memory = {str(i): limit() for i in range(draw.randint(0, 3))}
    if draw.random() < 0.8:
        max_memory["cpu"] = limit()
    return {"model": model, "max_memory": max_memory, "no_split": draw.sample(["Block", "Layer"], draw.randint(0, 2)),
            "dtype": draw.choice(["", "", "float16", "int8"]), "clean": draw.random() < 0.7,
            "offload_buffers": draw.random() < 0.5, "fallback": draw.random() < 0.4, "low_zero": draw.random() < 0.3}


def accelerates_answer(question):
    model = torch_model(question["model"], {})
    limits = {int(key) if key.isdigit() else key: value for key, value in question["max_memory"].items()}
    dtype = getattr(torch, question["dtype"]) if question["dtype"] else None
    total, (largest, names) = calculate_maximum_sizes(model)
    balanced = get_balanced_memory(model, dict(limits), question["no_split"], dtype, low_zero=question["low_zero"])
    return {"sizes": dict(compute_module_sizes(model, dtype=dtype)),
            "tied": sorted(find_tied_parameters(model)),
            "balanced": {str(key): int(value) for key, value in balanced.items()},
            "total": total, "largest": largest, "largest_names": names,
            "map": dict(infer_auto_device_map(model, dict(limits), question["no_split"], dtype,
                                              clean_result=question["clean"],
                                              offload_buffers=question["offload_buffers"],
                                              fallback_allocation=question["fallback"]))}


class DeviceMaps(unittest.TestCase):
    maxDiff = None

    def tool(self, *words, text=""):
        done = subprocess.run([TOOL, *map(str, words)], input=text, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_maps_sizes_and_limits_of_random_models(self):
        draw = random.Random(20261127)
        questions, answers = [], []
        while len(questions) < NUM_MODELS:
            question = random_question(draw)
            try:
                answers.append(accelerates_answer(question))
            except (IndexError, KeyError, AttributeError):
                continue  # faults of Accelerate: ties that it does not find, a GPU 0 without a limit, eighths of bytes of bools
            questions.append(question)
        lines = self.tool("plan", text="".join(json.dumps(one) + "\n" for one in questions)).splitlines()
        self.assertEqual(len(lines), NUM_MODELS)
        num_split = 0
        for question, line, theirs in zip(questions, lines, answers):
            ours = json.loads(line)
            for name, value in theirs.items():
                self.assertEqual(ours[name], value, f"{name} of {json.dumps(question)}")
            num_split += len(set(theirs["map"].values())) > 1
        self.assertGreater(num_split, NUM_MODELS // 3)  # else the models would say little

    def weights(self):
        torch.manual_seed(5)
        return {f"{i}.{name}": torch.randn(shape) for i in range(3) for name, shape in
                (("weight", (16, 16)), ("bias", (16,)))}

    def test_folders_of_offloaded_weights_are_read_by_both(self):
        with tempfile.TemporaryDirectory() as scratch:
            tensors = {"a.b": torch.randn(3, 4), "half": torch.randn(5).half(), "brain": torch.randn(2, 2).bfloat16(),
                       "one": torch.tensor(3), "flags": torch.tensor([True, False]), "none": torch.empty(0, 2).fill_(1),
                       "tiny": torch.randn(4).to(torch.float8_e4m3fn)}
            del tensors["none"]  # numpy cannot map an empty file
            offload_state_dict(f"{scratch}/theirs", tensors)
            self.tool("rewrite", f"{scratch}/theirs", f"{scratch}/ours")
            loader = OffloadedWeightsLoader(save_folder=f"{scratch}/ours")
            self.assertEqual(set(loader), set(tensors))
            for name, tensor in tensors.items():
                self.assertEqual(loader[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(loader[name].float(), tensor.float()), name)
                ours, theirs = (pathlib.Path(scratch, side, f"{name}.dat").read_bytes() for side in ("ours", "theirs"))
                self.assertEqual(ours, theirs, name)

    def test_a_model_computes_the_same_wherever_its_weights_lie(self):
        all_bits = set()
        with tempfile.TemporaryDirectory() as scratch:
            save_file(self.weights(), f"{scratch}/model.safetensors")
            for places in ({"": "cpu"}, {"": "disk"}, {"0": "cpu", "1": "disk", "2": "disk"}):
                *bits, offloaded = self.tool("run", scratch, json.dumps(places), f"{scratch}/ours").split()
                all_bits.add(" ".join(bits))
                self.assertEqual(int(offloaded), int("disk" in places.values()))
                if set(places.values()) == {"disk"}:
                    continue  # Accelerate asks safetensors for the device "disk"
                ours = torch.tensor([int(one, 16) for one in bits], dtype=torch.uint32).view(torch.float32)
                with init_empty_weights():
                    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
                model = load_checkpoint_and_dispatch(model, f"{scratch}/model.safetensors", device_map=places,
                                                     offload_folder=f"{scratch}/theirs")
                with torch.no_grad():
                    theirs = model(torch.ones(1, 16)).flatten()
                # Accelerate's weights lie where they do in the file, and BLAS sums in another order there: three layers of 16 products
                # each, 48 roundings of 2^-24 of the largest value.
                torch.testing.assert_close(ours, theirs, rtol=0, atol=48 * 2**-24 * float(theirs.abs().max()))
        self.assertEqual(len(all_bits), 1)


if __name__ == "__main__":
    unittest.main()

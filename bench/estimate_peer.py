"""What `accelerate estimate-memory` says of a model whose files are here: estimate_peer.py INDEX

The command itself asks the Hub and needs transformers, so this builds the modules that the tensors of the index name,
on the meta device, and calls what the command calls. Prints its table.
"""

import json
import os
import sys

import torch
from accelerate.commands.estimate import create_ascii_table, estimate_training_usage
from accelerate.utils import calculate_maximum_sizes, convert_bytes
from safetensors import safe_open

DIVISORS = {"float32": 1, "float16": 2, "int8": 4, "int4": 8}


class DecoderLayer(torch.nn.Module):
    """A block that transformers would name in _no_split_modules."""


def shapes_of(index):
    files = sorted(set(json.load(open(index))["weight_map"].values()))
    for name in files:
        with safe_open(os.path.join(os.path.dirname(index), name), framework="pt") as file:
            for key in file.keys():
                yield key, file.get_slice(key).get_shape()


def model_of(index):
    model = torch.nn.Module()
    model._no_split_modules = ["DecoderLayer"]
    for name, shape in shapes_of(index):
        *path, leaf = name.split(".")
        module = model
        for part in path:
            if part not in module._modules:
                module.add_module(part, DecoderLayer() if part.isdigit() else torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(leaf, torch.nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False))
    return model


def main():
    total, (largest, _) = calculate_maximum_sizes(model_of(sys.argv[1]))
    rows = []
    for dtype, divisor in DIVISORS.items():
        training = max(estimate_training_usage(total, dtype).values())
        rows.append([dtype, convert_bytes(largest / divisor), convert_bytes(total / divisor),
                     convert_bytes(training) if training != -1 else "N/A"])
    headers = ["dtype", "Largest Layer", "Total Size", "Training using Adam"]
    print(create_ascii_table(headers, rows, f"Memory Usage for loading `{sys.argv[1]}`"))


if __name__ == "__main__":
    main()

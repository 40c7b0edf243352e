#!/usr/bin/env python3
"""Writes the exported models that the tests beside this folder read. Run it with torch 2.11 to make them anew:

    .deps/peer/bin/python tests/unit/libaccel/exported/models/make_models.py

What no reader needs is taken out of the files, so that they stay small: where nodes came from, sample inputs, paths.
"""
import io
import json
import os
import pathlib
import zipfile

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = pathlib.Path(__file__).resolve().parent
BATCH = torch.export.Dim("batch", min=1, max=64)
AUTO = torch.export.Dim.AUTO


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Blocks(nn.Module):
    """Tied weights, dropout, a region without autograd, buffers of both kinds, one written in place, outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, ids, labels):
        with torch.no_grad():
            places = torch.arange(ids.shape[1]).float().cos()[None, :, None]
        x = self.embed(ids) * self.scale + places
        self.calls.add_(1)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Norms(nn.Module):
    """Batch norm, LSTM, operators with several results and with lists, outputs in tuples, None and a number."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        y = self.norm(self.conv(x)).relu().flatten(2)
        z, (h, _) = self.lstm(y)
        top, places = torch.max(z, -1)
        parts = torch.split(z, 2, -1)
        return top, places, (h, parts[1]), None, 7


class Control(nn.Module):
    """A choice, a loop, autocast, and sizes that are computed."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x) + 1, (x,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(y)
        _, z = torch._higher_order_ops.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), y))
        pad = torch.zeros(x.shape[0] * 2 // 2 + 1, 4)
        count = x.abs().sum().int().item()
        torch._check(count >= 0)
        torch._check(count < 100)
        return z.float(), pad, torch.ones(count).sum() * count / 3


class Noisy(nn.Module):
    """Another graph in evaluation than in training."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        y = self.line(x)
        return y * 2 if self.training else y + torch.ones(2)


class Counting(nn.Module):
    """Writes a buffer and an input; exported without operators that write."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.register_buffer("sum", torch.zeros(4))

    def forward(self, x, seen):
        self.sum.add_(x.sum(0))
        seen.add_(1)
        return self.line(x)


class Casting(nn.Module):
    """Computes in another dtype than that of its weights."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        for line in (self.up, self.down):
            x = F.linear(x, line.weight.double(), line.bias.double())
        return x


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x, mask=None, bias=None):
        y = self.line(x)
        y = y if mask is None else y * mask
        return y if bias is None else y + bias


@torch.library.custom_op("accel_test::twice", mutates_args=())
def twice(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x * times


@twice.register_fake
def _(x, times=2):
    return torch.empty_like(x)


twice.register_autograd(lambda context, gradient: (gradient * 2, None))


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        return twice(self.line(x))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.line(x))


class Field(nn.Module):
    """The next state of a field on a grid of 6 by 4 points: without random numbers, with a loss and the field."""

    def __init__(self):
        super().__init__()
        self.near = nn.Conv2d(1, 3, 3, padding=1)
        self.point = nn.Conv2d(3, 1, 1)

    def forward(self, x, target):
        y = x + self.point(torch.tanh(self.near(x[:, None])))[:, 0]
        return {"loss": F.mse_loss(y, target), "y": y}


class Decoder(nn.Module):
    """Tokens to logits: with a cache of keys and values in buffers, as transformers exports one, or without."""

    def __init__(self, rows=None, places=12):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 16, bias=False)
        self.places = places
        self.is_cached = rows is not None
        for name in ("key_cache_0", "value_cache_0") if self.is_cached else ():
            self.register_buffer(name, torch.zeros(rows, 2, places, 4), persistent=False)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)

    def logits(self, input_ids, places):
        x = self.embed(input_ids) + (places[:, None] * torch.arange(1, 9) / 9.0).cos()
        keys, values, mask = self.heads(self.key(x)), self.heads(self.value(x)), None
        if self.is_cached:
            self.key_cache_0.index_copy_(2, places, keys)
            self.value_cache_0.index_copy_(2, places, values)
            keys, values = self.key_cache_0, self.value_cache_0
            mask = torch.arange(self.places)[None, :] <= places[:, None]
        y = F.scaled_dot_product_attention(self.heads(self.query(x)), keys, values, mask, is_causal=mask is None)
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


class CachedDecoder(Decoder):
    def forward(self, input_ids, cache_position):
        return self.logits(input_ids, cache_position)


class PrefixDecoder(Decoder):
    def forward(self, input_ids):
        return self.logits(input_ids, torch.arange(input_ids.shape[1]))


def export(model, inputs, shapes=None):
    return torch.export.export(model, (), kwargs=inputs, strict=False, dynamic_shapes=shapes)


def small_graph(text):
    document = json.loads(text)

    def strip(graph):
        for node in graph["nodes"]:
            kept = {key: node["metadata"][key] for key in ("nn_module_stack", "stack_trace") if key in node["metadata"]}
            if "stack_trace" in kept:
                lines = [line for line in kept["stack_trace"].split("\n") if 'File "' in line]
                kept["stack_trace"] = "\n".join(
                    '  File "' + os.path.basename(line.split('"')[1]) + '"' + line.split('"', 2)[2] for line in lines[:1])
            node["metadata"] = kept
            for value in node["inputs"]:
                if "as_graph" in value["arg"]:
                    strip(value["arg"]["as_graph"]["graph"])
        inputs = {value.get("as_tensor", {}).get("name") for value in graph["inputs"]}
        graph["tensor_values"] = {name: meta for name, meta in graph["tensor_values"].items() if name in inputs}

    strip(document["graph_module"]["graph"])
    return json.dumps(document, separators=(",", ":"))


def write(name, programs):
    from torch.export.pt2_archive._package import package_pt2
    buffer = io.BytesIO()
    package_pt2(buffer, exported_programs=programs)
    writer = torch._C.PyTorchFileWriter(str(FOLDER / (name + ".pt2")))
    with zipfile.ZipFile(buffer) as archive:
        for entry in archive.namelist():
            path = entry.split("/", 1)[1]
            if path.startswith(("data/sample_inputs", ".data")) or path in ("version", "byteorder"):
                continue
            data = archive.read(entry)
            if path.startswith("models/"):
                data = small_graph(data).encode()
            writer.write_record(path, data, len(data))
    writer.write_end_of_file()


def write_decoders():
    """The same weights three times: a cache for two rows, one for one row that takes a token at a time, none."""
    ids = torch.arange(6).view(2, 3)
    sequence = torch.export.Dim("sequence", min=1, max=12)
    cached = {"input_ids": ids, "cache_position": torch.arange(3)}
    torch.manual_seed(2)
    write("cached", {"model": export(CachedDecoder(2).eval(), cached, {"input_ids": {1: sequence}, "cache_position": {0: sequence}})})
    torch.manual_seed(2)
    write("stepwise", {"model": export(CachedDecoder(1).eval(), {"input_ids": ids[:1, :1], "cache_position": torch.arange(1)})})
    torch.manual_seed(2)
    write("prefix", {"model": export(PrefixDecoder().eval(), {"input_ids": ids}, {"input_ids": {0: BATCH, 1: sequence}})})


def write_casting():
    torch.manual_seed(3)
    write("casting", {"model": export(Casting(), {"x": torch.ones(2, 4, dtype=torch.float64)})})


def main():
    write_decoders()
    write_casting()
    torch.manual_seed(1)
    ids = torch.arange(12).view(3, 4)
    write("blocks", {"model": export(Blocks(), {"ids": ids, "labels": ids.clone()},
                                     {"ids": {0: BATCH, 1: AUTO}, "labels": {0: BATCH, 1: AUTO}})})
    write("norms", {"model": export(Norms(), {"x": torch.randn(2, 2, 4, 4)})})
    write("control", {"model": export(Control(), {"x": torch.randn(3, 4)}, {"x": {0: BATCH}})})
    noisy = Noisy()
    x = torch.randn(2, 4)
    programs = {"model": export(noisy.train(), {"x": x}), "eval": export(noisy.eval(), {"x": x})}
    write("pair", programs)
    write("counting", {"model": export(Counting(), {"x": x, "seen": torch.zeros(1)}).run_decompositions({})})
    write("optional", {"model": export(Optional(), {"x": x, "mask": None, "bias": torch.randn(4)})})
    write("custom", {"model": export(Custom(), {"x": x})})
    write("frozen", {"model": export(Block(4).eval(), {"x": x})})
    write("inference", {"model": export(Normed().eval(), {"x": x}).run_decompositions()})
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        program = export(nn.Linear(4, 2), {"input": torch.empty(2, 4)})
    write("empty", {"model": program})
    x = torch.randn(3, 6, 4)
    write("field", {"model": export(Field(), {"x": x, "target": x.clone()}, {"x": {0: BATCH}, "target": {0: BATCH}})})


if __name__ == "__main__":
    main()
